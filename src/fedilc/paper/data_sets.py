"""The data sets of the paper: their files, checksums and addresses."""

from __future__ import annotations

from fedilc.data.download import DataSet, Form

_MNIST = {
    "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_MNIST_RAW = {
    "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_CIFAR = {
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR_ARCHIVE = ("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")
_EICU_DEMO = {
    "patient.csv.gz": "sha256:15e1eb52169828e3cfff3b67132a087298de4d0365bbb31bb294f6043bffd474",
    "medication.csv.gz": "sha256:480a251570a27932110452f66f248061f712c306663c274f78f90875648cb720",
    "hospital.csv.gz": "sha256:4ed356f9c4e7c8ce80e89241697e94b77f21c2f325cd6ad126794b1e92805ef4",
}
_EICU = ("patient", "medication", "hospital")

DATA_SETS = {
    "mnist": DataSet(
        summary="70,000 handwritten digits, for color-mnist",
        size="12 MB",
        forms=tuple(
            Form(folder, files)
            for folder in ("mnist", "", "MNIST/raw")  # the last is torchvision's
            for files in (_MNIST, _MNIST_RAW)
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    "cifar-10": DataSet(
        summary="60,000 small photographs of ten kinds, for rotated-cifar10",
        size="170 MB",
        forms=(Form("cifar-10-batches-bin", _CIFAR), Form("", _CIFAR), Form("", dict([_CIFAR_ARCHIVE]))),
        mirrors=(
            "https://www.cs.toronto.edu/~kriz/",
            "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
            "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
        ),
        archive=_CIFAR_ARCHIVE,
    ),
    "eicu-demo": DataSet(
        summary="the open demo of eICU 2.0.1: 2,520 stays in intensive care (ODbL)",
        size="1.6 MB",
        forms=(
            Form("eicu-demo", _EICU_DEMO),
            Form("eicu-demo", dict.fromkeys(f"{table}.csv" for table in _EICU)),
        ),
        mirrors=(
            "https://physionet.org/files/eicu-crd-demo/2.0.1/",
            "https://physionet-open.s3.amazonaws.com/eicu-crd-demo/2.0.1/",
        ),
    ),
    "eicu": DataSet(
        summary="the eICU database 2.0: 200,859 stays in intensive care; credentialed",
        size="-",
        forms=tuple(
            Form("eicu", dict.fromkeys(f"{table}.{suffix}" for table in _EICU))
            for suffix in ("csv.gz", "csv")
        ),
        steps=(
            "eicu cannot be fetched, because its publisher gives it to credentialed users only: become one "
            "at https://physionet.org/settings/credentialing/, sign the agreement at "
            "https://physionet.org/content/eicu-crd/2.0/, and put {files} from there into {place}"
        ),
    ),
}

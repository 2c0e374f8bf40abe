"""A campaign beside the paper: its tables, pictures and claims."""

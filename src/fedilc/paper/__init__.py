"""The paper's benchmarks, tables and claims, and the commands for them; nothing else imports it."""

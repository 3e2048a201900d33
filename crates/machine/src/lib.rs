//! Driver trait, the drivers, and the Job runner.

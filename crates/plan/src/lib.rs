//! The machine plan, its checksum and its secret's keys, shared by agent and planner.

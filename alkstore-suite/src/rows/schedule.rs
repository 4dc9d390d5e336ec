//! Rows of docs/architecture/schedule.md.

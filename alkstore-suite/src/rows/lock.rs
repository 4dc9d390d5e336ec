//! Rows of docs/architecture/lock.md.

//! Rows of docs/architecture/tx.md.

//! Rows of docs/architecture/stream.md.

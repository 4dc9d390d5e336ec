//! Rows of docs/architecture/outbox.md.

//! Rows of docs/architecture/notify.md.

//! The pure ingredients of strategies.

//! What the whole binary endures.

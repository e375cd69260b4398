//! What crosses the wire: how a vector is encoded, and how encoded vectors are summed.

//! What a long-haul link does to packets.

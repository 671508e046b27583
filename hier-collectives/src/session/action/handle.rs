//! Numbers by which a session and its engine name what is under way.

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u64);
    };
}

handle!(
    /// A piece of the gateway's own memory.
    ScratchId
);
handle!(
    /// A reduction or copy under way.
    TaskId
);
handle!(
    /// A stream's permission to write.
    LeaseId
);

//! The memory for partials of several local ranks, which all sessions of a job share.
//!
//! A job owns one [`PartialsPool`]. Each session of the job takes bytes by its [`HeldPartials`]
//! before a local reduction, and gives them back when the result is in place. Sessions without
//! partials leave all memory to the others. One thread calls all sessions of a job; the numbers
//! are atomic so that sessions may move to another thread.

use crate::size_class::SizeClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use units::ByteCount;

/// Memory for the partials of a job: one handle to it. All clones stand for the same memory.
#[derive(Debug, Clone)]
pub struct PartialsPool(Arc<PoolState>);

/// The numbers of a pool.
#[derive(Debug)]
struct PoolState {
    /// The bytes for all size classes together.
    total: AtomicU64,
    /// The use of each size class.
    classes: [ClassUse; SizeClass::ALL.len()],
}

/// The use of a pool by the operations of one size class.
#[derive(Debug, Default)]
struct ClassUse {
    /// The bytes that all sessions hold.
    held: AtomicU64,
    /// The number of sessions that hold bytes.
    sessions: AtomicU64,
}

impl PartialsPool {
    /// Makes a pool of `total` bytes. Each session may hold one partial however small that is.
    pub fn new(total: ByteCount) -> Self {
        let classes = std::array::from_fn(|_| ClassUse::default());
        Self(Arc::new(PoolState { total: AtomicU64::new(total.get()), classes }))
    }

    /// Returns the bytes for all size classes together.
    pub fn total(&self) -> ByteCount {
        ByteCount::new(self.0.total.load(Relaxed))
    }

    /// Sets the bytes for all size classes together. Partials above a lower total stay until their
    /// results are in place.
    pub fn set_total(&self, total: ByteCount) {
        self.0.total.store(total.get(), Relaxed);
    }
}

/// The bytes of a pool that one session holds. They return to the pool when this is dropped.
#[derive(Debug)]
pub(super) struct HeldPartials {
    pool: PartialsPool,
    bytes: [u64; SizeClass::ALL.len()],
}

impl HeldPartials {
    /// Holds nothing of a pool yet.
    pub fn new(pool: PartialsPool) -> Self {
        Self { pool, bytes: [0; SizeClass::ALL.len()] }
    }

    /// Takes `bytes` bytes for an operation of this size class. Returns false, and takes nothing,
    /// if the session must first give bytes back.
    ///
    /// A session without bytes of the class always gets them, so that none waits for another. One
    /// with bytes gets no more than an equal part among the sessions that hold some, and no more
    /// than is free. A new session finds memory soon: those above their part take nothing new.
    pub fn try_take(&mut self, class: SizeClass, bytes: u64) -> bool {
        let (of_class, own) = (&self.pool.0.classes[class as usize], self.bytes[class as usize]);
        let held = of_class.held.load(Relaxed);
        if own == 0 {
            of_class.sessions.fetch_add(u64::from(bytes > 0), Relaxed);
        } else {
            let most = class.partials_bytes(self.pool.total().get());
            let part = most / of_class.sessions.load(Relaxed).max(1);
            if own.saturating_add(bytes) > part || held.saturating_add(bytes) > most {
                return false;
            }
        }
        of_class.held.store(held + bytes, Relaxed);
        self.bytes[class as usize] = own + bytes;
        true
    }

    /// Takes `bytes` bytes for an operation of this size class, also where all memory is held: for one
    /// segment without which nothing would be given back.
    pub fn take_beyond(&mut self, class: SizeClass, bytes: u64) {
        if !self.try_take(class, bytes) {
            self.pool.0.classes[class as usize].held.fetch_add(bytes, Relaxed);
            self.bytes[class as usize] += bytes;
        }
    }

    /// Gives `bytes` bytes back that the session had taken for this size class.
    pub fn give_back(&mut self, class: SizeClass, bytes: u64) {
        let (of_class, own) = (&self.pool.0.classes[class as usize], self.bytes[class as usize]);
        let left = own.checked_sub(bytes).expect("given back as taken");
        of_class.held.fetch_sub(bytes, Relaxed);
        of_class.sessions.fetch_sub(u64::from(own > 0 && left == 0), Relaxed);
        self.bytes[class as usize] = left;
    }

    /// Returns the bytes that the session holds for all size classes together.
    #[cfg(test)]
    pub fn held(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

impl Drop for HeldPartials {
    fn drop(&mut self) {
        for class in SizeClass::ALL {
            self.give_back(class, self.bytes[class as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGE: SizeClass = SizeClass::Large;

    /// Takes partials of 10 bytes until the pool refuses. Returns how many it took.
    fn take_tens(held: &mut HeldPartials) -> usize {
        (0..1000).take_while(|_| held.try_take(LARGE, 10)).count()
    }

    #[test]
    fn a_session_gets_all_memory_while_others_hold_none() {
        let pool = PartialsPool::new(ByteCount::new(160));
        let idle: Vec<_> = (0..4096).map(|_| HeldPartials::new(pool.clone())).collect();
        let mut busy = HeldPartials::new(pool);
        assert_eq!(take_tens(&mut busy), 10, "100 of 160 bytes are for large operations");
        drop(idle);
    }

    #[test]
    fn a_second_session_gets_half_once_the_first_releases() {
        let pool = PartialsPool::new(ByteCount::new(160));
        let [mut first, mut second] = [(); 2].map(|()| HeldPartials::new(pool.clone()));
        assert_eq!(take_tens(&mut first), 10);
        assert_eq!(take_tens(&mut second), 1, "one partial is always granted");
        for _ in 0..10 {
            first.give_back(LARGE, 10);
            take_tens(&mut first);
            take_tens(&mut second);
        }
        assert_eq!((first.held(), second.held()), (50, 50));
        drop(second);
        assert_eq!(take_tens(&mut first), 5, "a dropped session gives its bytes back");
    }

    #[test]
    fn partials_above_a_lower_total_stay() {
        let pool = PartialsPool::new(ByteCount::new(160));
        let mut held = HeldPartials::new(pool.clone());
        take_tens(&mut held);
        pool.set_total(ByteCount::new(32));
        assert_eq!(pool.total(), ByteCount::new(32));
        held.give_back(LARGE, 70);
        assert_eq!((take_tens(&mut held), held.held()), (0, 30));
        held.give_back(LARGE, 20);
        assert_eq!((take_tens(&mut held), held.held()), (1, 20));
    }

    proptest! {
        /// However sessions take and give back, they hold at most the total and one partial each,
        /// and a pool without holders is whole.
        #[test]
        fn sessions_never_hold_more_than_total_and_a_partial(
            total in 0u64..2000,
            steps in prop::collection::vec((0usize..5, 0usize..3, 0u64..100, any::<bool>()), 0..200),
        ) {
            let pool = PartialsPool::new(ByteCount::new(total));
            let mut sessions: Vec<_> = (0..5).map(|_| HeldPartials::new(pool.clone())).collect();
            let mut taken = vec![[const { Vec::new() }; 3]; 5];
            for (session, class, bytes, takes) in steps {
                let of_class = SizeClass::ALL[class];
                if takes {
                    if sessions[session].try_take(of_class, bytes) {
                        taken[session][class].push(bytes);
                    } else {
                        prop_assert!(taken[session][class].iter().any(|bytes| *bytes > 0));
                    }
                } else if let Some(bytes) = taken[session][class].pop() {
                    sessions[session].give_back(of_class, bytes);
                }
                let held: u64 = sessions.iter().map(HeldPartials::held).sum();
                prop_assert!(held <= total + 5 * 3 * 99);
                prop_assert_eq!(held, taken.iter().flatten().flatten().sum::<u64>());
            }
            drop(sessions);
            let state = &pool.0.classes;
            let idle = |of: &ClassUse| of.held.load(Relaxed) == 0 && of.sessions.load(Relaxed) == 0;
            prop_assert!(state.iter().all(idle));
        }
    }
}

//! Accounting for the time that sites take to receive packets.
//!
//! Handing a packet to a site runs that site's network stack. An acknowledgement may cost it 100
//! us, in a recovery from many losses. Packets that wait meanwhile do not count as late: on a real
//! network they would wait in the receive queue of a slow host.

use units::{Span, TimeNs};

/// The time that sites took to receive packets, since deliveries last paused.
#[derive(Debug)]
pub(super) struct HostReceipts {
    /// Receipts by site.
    received: Vec<Vec<Receipt>>,
}

/// One time span in which a site received a packet.
#[derive(Debug, Clone, Copy)]
struct Receipt {
    begin: TimeNs,
    end: TimeNs,
    /// Time taken by this receipt and all earlier ones.
    total: Span,
}

impl HostReceipts {
    /// Makes an account without receipts for `sites` sites.
    pub(super) fn new(sites: usize) -> Self {
        Self { received: vec![Vec::new(); sites] }
    }

    /// Forgets all receipts, since no delivery is due.
    pub(super) fn clear_receipts(&mut self) {
        self.received.iter_mut().for_each(Vec::clear);
    }

    /// Records that a site took from `begin` to `end` to receive a packet. Receipts of a site come
    /// in order of time.
    pub(super) fn add_receipt(&mut self, site: usize, begin: TimeNs, end: TimeNs) {
        let of_it = &mut self.received[site];
        let before = of_it.last().map_or(Span::ZERO, |receipt| receipt.total);
        of_it.push(Receipt { begin, end, total: before + end.since(begin) });
    }

    /// Returns the lateness of a packet that was due at `due` and goes to a site at `now`, less the
    /// time that the site took for other packets meanwhile.
    pub(super) fn lateness(&self, site: usize, due: TimeNs, now: TimeNs) -> Span {
        let of_it = &self.received[site];
        let first = of_it.partition_point(|receipt| receipt.end <= due);
        let all = of_it.last().map_or(0, |receipt| receipt.total.ns());
        let before = first.checked_sub(1).map_or(0, |last| of_it[last].total.ns());
        // The one under way when it fell due.
        let cut = of_it.get(first).map_or(0, |receipt| due.since(receipt.begin).ns());
        let taken = all - before - cut;
        Span::from_ns(now.since(due).ns().saturating_sub(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> TimeNs {
        TimeNs::from_ns(us * 1000)
    }

    #[test]
    fn a_slow_site_is_late_for_others_alone() {
        let mut hosts = HostReceipts::new(2);
        hosts.add_receipt(0, at(100), at(300));
        hosts.add_receipt(1, at(300), at(340));
        hosts.add_receipt(0, at(350), at(1000));
        let late = |site, due| hosts.lateness(site, at(due), at(1010)).ns() / 1000;
        // Of 910 us it took 850 itself; of what came later, less.
        assert_eq!((late(0, 100), late(1, 100)), (60, 870));
        assert_eq!((late(0, 200), late(1, 320)), (60, 670));
        assert_eq!((late(0, 400), late(0, 1000), late(0, 1010)), (10, 10, 0));
        hosts.clear_receipts();
        assert_eq!(hosts.lateness(0, at(100), at(1010)), Span::from_ns(910_000));
    }
}

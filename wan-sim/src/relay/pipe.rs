//! Packets in flight, in order of delivery, joined into batches for one send each.

use super::datagram_batch::{
    BATCH_BYTES_MAX, BATCH_DATAGRAMS_MAX, BATCH_SPAN_MAX, BatchMember, DatagramBatch, FlowId,
    append_to_datagram_batch,
};
use crate::{Delivery, Moved, PacketName};
use quinn_udp::EcnCodepoint;
use std::collections::{BTreeMap, VecDeque};
use units::TimeNs;

/// The packets in one direction of the link. The link bounds them: its queue, plus its rate times
/// its delay.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    batches: VecDeque<DatagramBatch>,
    spare: Vec<(Vec<u8>, Vec<BatchMember>)>,
}

/// The result of one read: datagrams of one size, the last one perhaps shorter.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    pub(super) buffer: Vec<u8>,
    pub(super) len: usize,
    pub(super) segment_bytes: usize,
}

impl Pipe {
    /// Adds a datagram that arrives as `delivery` says. Returns whether the datagram began a batch.
    pub(super) fn push_datagram(
        &mut self,
        flow: FlowId,
        ecn: Option<EcnCodepoint>,
        datagram: &[u8],
        name: PacketName,
        delivery: Delivery,
    ) -> bool {
        let at = delivery.at;
        let ecn = if delivery.marked.is_some() { Some(EcnCodepoint::Ce) } else { ecn };
        let bit = delivery.corrupt_bit;
        if let Some(last) = self.batches.back_mut()
            && last.can_append(flow, ecn, datagram.len(), at)
        {
            append_to_datagram_batch(&mut last.data, datagram, bit);
            last.members.push((name, at));
            last.closed = datagram.len() < last.segment_bytes;
            return false;
        }
        let (mut data, mut members) = self.take_spare_memory();
        data.clear();
        append_to_datagram_batch(&mut data, datagram, bit);
        members.push((name, at));
        self.insert_batch(DatagramBatch {
            flow,
            ecn,
            segment_bytes: datagram.len(),
            data,
            members,
            closed: datagram.is_empty(),
        });
        true
    }

    /// Takes the buffer of `read` as one batch and gives back another buffer, which saves a copy.
    ///
    /// Only if all datagrams arrive together and undamaged, and the buffer is large. Returns
    /// whether it took the buffer.
    pub(super) fn adopt_buffer(
        &mut self,
        flow: FlowId,
        ecn: Option<EcnCodepoint>,
        read: &mut ReadBuffer,
        arrivals: &[(PacketName, Delivery)],
    ) -> bool {
        let [(_, first), .., (_, latest)] = arrivals else { return false };
        let whole = arrivals.len() == read.len.div_ceil(read.segment_bytes)
            && arrivals.len() <= BATCH_DATAGRAMS_MAX
            && (ADOPTED_BYTES_MIN..=BATCH_BYTES_MAX).contains(&read.len)
            && latest.at.since(first.at) <= BATCH_SPAN_MAX
            && arrivals.is_sorted_by_key(|(_, delivery)| delivery.at)
            && arrivals.iter().all(|(name, delivery)| {
                !name.copy && delivery.marked.is_none() && delivery.corrupt_bit.is_none()
            });
        if !whole {
            return false;
        }
        let (spare, mut members) = self.take_spare_memory();
        let mut data = std::mem::replace(&mut read.buffer, spare);
        data.truncate(read.len);
        members.extend(arrivals.iter().map(|(name, delivery)| (*name, delivery.at)));
        self.insert_batch(DatagramBatch {
            flow,
            ecn,
            segment_bytes: read.segment_bytes,
            data,
            members,
            closed: true,
        });
        true
    }

    /// Inserts a batch in order of delivery.
    fn insert_batch(&mut self, batch: DatagramBatch) {
        // At the end, except where packets overtake.
        let due = batch.due();
        let before = self.batches.iter().rposition(|other| other.due() <= due);
        self.batches.insert(before.map_or(0, |place| place + 1), batch);
    }

    /// Removes and returns the next batch that is due at `now`.
    pub(super) fn pop_due_batch(&mut self, now: TimeNs) -> Option<DatagramBatch> {
        self.next_due().filter(|due| *due <= now)?;
        self.batches.pop_front()
    }

    /// Returns when the next batch is due; `None` when there is none.
    pub(super) fn next_due(&self) -> Option<TimeNs> {
        self.batches.front().map(DatagramBatch::due)
    }

    /// Moves packets to their new times after a change of the link. A batch whose packets no longer
    /// arrive together is split. Returns the flow of each new batch.
    pub(super) fn move_packets(&mut self, moved: &[Moved]) -> Vec<FlowId> {
        let moved: BTreeMap<_, _> = moved.iter().map(|moved| (moved.packet, moved.at)).collect();
        let mut began = Vec::new();
        for place in 0..self.batches.len() {
            let batch = &mut self.batches[place];
            for (name, at) in &mut batch.members {
                *at = moved.get(name).copied().unwrap_or(*at);
            }
            while let Some(rest) = self.batches[place].split_off_late() {
                // Of those that came apart, the first is whole now.
                let first = std::mem::replace(&mut self.batches[place], rest);
                began.push(first.flow);
                self.batches.push_back(first);
            }
        }
        self.batches.make_contiguous().sort_by_key(|batch| (batch.due(), batch.first_name()));
        began
    }

    /// Keeps the memory of a sent batch for reuse.
    pub(super) fn recycle_batch(&mut self, batch: DatagramBatch) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push((batch.data, batch.members));
        }
    }

    /// Returns memory for a batch, new where none is spare. Old bytes stay in the buffer, so that a
    /// reader need not fill it with zeros again.
    fn take_spare_memory(&mut self) -> (Vec<u8>, Vec<BatchMember>) {
        let (data, mut members) = self.spare.pop().unwrap_or_default();
        members.clear();
        (data, members)
    }
}

/// 16 KiB: datagrams of one read that are shorter together are copied, which costs less than a new
/// read buffer. Longer ones that arrive together and undamaged stay in their buffer. The limit is
/// chosen.
const ADOPTED_BYTES_MIN: usize = 16 << 10;

/// 512 send buffers of the relay in one direction, each of at most [`BATCH_BYTES_MAX`]: the most
/// that are kept for reuse; further ones are freed. The limit of memory, 32 MiB, is chosen.
const SPARE_BUFFERS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MarkReason;
    use proptest::prelude::*;

    const US: u64 = 1000;

    fn delivery(at: u64) -> Delivery {
        Delivery { at: TimeNs::from_ns(at), marked: None, corrupt_bit: None }
    }

    fn push(pipe: &mut Pipe, flow: u64, bytes: usize, at: u64) -> bool {
        pipe.push_datagram(FlowId(flow), None, &vec![0; bytes], name(at), delivery(at))
    }

    /// A packet's name, numbered by its time.
    fn name(at: u64) -> PacketName {
        PacketName { number: at, copy: false }
    }

    fn moved(from: u64, to: u64) -> Moved {
        Moved { packet: name(from), at: TimeNs::from_ns(to) }
    }

    /// Length and time of each batch.
    fn batches(pipe: &mut Pipe) -> Vec<(usize, u64)> {
        let all = std::iter::from_fn(|| pipe.pop_due_batch(TimeNs::from_ns(u64::MAX)));
        all.map(|batch| (batch.data.len(), batch.due().ns() / US)).collect()
    }

    #[test]
    fn a_batch_splits_when_its_packets_arrive_apart() {
        let mut pipe = Pipe::default();
        for at in [0, 20, 40, 60, 80] {
            push(&mut pipe, 1, if at == 80 { 10 } else { 1000 }, at * US);
        }
        push(&mut pipe, 2, 1000, 300 * US);
        // At a fiftieth of the rate: the third and those after it are each a millisecond apart.
        let slower = [(40, 40), (60, 1040), (80, 2040), (7, 1)];
        let began = pipe.move_packets(&slower.map(|(from, to)| moved(from * US, to * US)));
        assert_eq!(began, [FlowId(1); 2]);
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(40 * US)));
        assert_eq!(batches(&mut pipe), [(3000, 40), (1000, 300), (1000, 1040), (10, 2040)]);
    }

    #[test]
    fn a_batch_that_arrives_together_grows() {
        let mut pipe = Pipe::default();
        for at in [0, 50, 100] {
            push(&mut pipe, 1, 1000, at * US);
        }
        let later = [(0, 500), (50, 550), (100, 600)];
        assert!(pipe.move_packets(&later.map(|(from, to)| moved(from * US, to * US))).is_empty());
        assert!(!push(&mut pipe, 1, 1000, 600 * US));
        assert_eq!(batches(&mut pipe), [(4000, 600)]);
        // Sooner than the one before, as where order is free.
        push(&mut pipe, 1, 1000, 700 * US);
        push(&mut pipe, 1, 1000, 720 * US);
        assert_eq!(pipe.move_packets(&[moved(720 * US, 690 * US)]), [FlowId(1)]);
        assert_eq!(batches(&mut pipe), [(1000, 690), (1000, 700)]);
    }

    proptest! {
        /// However packets move, each leaves with others of its new time, and none is lost.
        #[test]
        fn every_packet_leaves_at_its_new_time(
            arrivals in prop::collection::vec((0u64..60, 0u64..3, 0u64..400), 1..200),
        ) {
            let mut pipe = Pipe::default();
            let (mut at, mut under_way, mut moves) = (0, 0, Vec::new());
            for (number, (gap, flow, by)) in (0..).zip(arrivals) {
                at += gap * US;
                let name = PacketName { number, copy: false };
                let bytes = [number as u8; 8];
                let began =
                    pipe.push_datagram(FlowId(flow), None, &bytes, name, delivery(at));
                under_way += usize::from(began);
                moves.push(Moved { packet: name, at: TimeNs::from_ns(at + by * US) });
            }
            let all = moves.len();
            under_way += pipe.move_packets(&moves).len();
            let mut left = 0;
            while let Some(batch) = pipe.pop_due_batch(TimeNs::from_ns(u64::MAX)) {
                under_way -= 1;
                left += batch.members.len();
                prop_assert_eq!(batch.data.len(), batch.members.len() * 8);
                for (bytes, (name, at)) in batch.data.chunks(8).zip(&batch.members) {
                    prop_assert_eq!(bytes[0], name.number as u8);
                    prop_assert_eq!(*at, moves[name.number as usize].at);
                    prop_assert!(batch.due().since(*at) <= BATCH_SPAN_MAX && *at <= batch.due());
                }
            }
            prop_assert_eq!((left, under_way), (all, 0));
        }
    }

    #[test]
    fn a_batch_leaves_with_its_last_packet() {
        let mut pipe = Pipe::default();
        assert!(push(&mut pipe, 1, 1000, 0));
        assert!(!push(&mut pipe, 1, 1000, 100 * US));
        assert!(push(&mut pipe, 1, 1000, 100 * US + 1));
        assert!(pipe.pop_due_batch(TimeNs::from_ns(100 * US - 1)).is_none());
        let batch = pipe.pop_due_batch(TimeNs::from_ns(100 * US)).unwrap();
        assert_eq!((batch.data.len(), batch.segment_bytes), (2000, 1000));
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(100 * US + 1)));
    }

    #[test]
    fn packets_that_fit_no_batch_begin_a_new_one() {
        let mut pipe = Pipe::default();
        assert!(push(&mut pipe, 1, 1000, 0));
        assert!(push(&mut pipe, 2, 1000, 0));
        assert!(push(&mut pipe, 2, 1001, 0));
        assert!(!push(&mut pipe, 2, 10, 0));
        assert!(push(&mut pipe, 2, 10, 0));
        assert!(push(&mut pipe, 2, 0, 0));
        assert!(push(&mut pipe, 2, 0, 0));
        let marked = Delivery { marked: Some(MarkReason::Loss), ..delivery(0) };
        assert!(pipe.push_datagram(FlowId(2), Some(EcnCodepoint::Ect0), &[0], name(0), marked));
        assert_eq!(pipe.batches.back().unwrap().ecn, Some(EcnCodepoint::Ce));
    }

    #[test]
    fn packets_overtake_and_bits_flip() {
        let mut pipe = Pipe::default();
        push(&mut pipe, 1, 1000, 500 * US);
        push(&mut pipe, 1, 1000, 100 * US);
        let flipped = Delivery { corrupt_bit: Some(16 + 3), ..delivery(100 * US) };
        assert!(pipe.push_datagram(FlowId(1), None, &[0, 0], name(0), flipped));
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(100 * US)));
        let first = pipe.pop_due_batch(TimeNs::from_ns(100 * US)).unwrap();
        assert_eq!(first.data.len(), 1000);
        let second = pipe.pop_due_batch(TimeNs::from_ns(100 * US)).unwrap();
        assert_eq!(second.data, [8, 0]);
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(500 * US)));
    }

    #[test]
    fn a_buffer_whose_packets_arrive_together_stays_whole() {
        let mut pipe = Pipe::default();
        let read = || ReadBuffer { buffer: vec![5; 65_536], len: 19_500, segment_bytes: 1000 };
        let arrivals: Vec<_> = (0..20).map(|i| (name(i), delivery(i * 5 * US))).collect();
        let mut adopt = |read: &mut ReadBuffer, arrivals: &[_]| {
            pipe.adopt_buffer(FlowId(1), None, read, arrivals)
        };
        assert!(adopt(&mut read(), &arrivals));
        let mut lost = arrivals.clone();
        lost.remove(3);
        let mut late = arrivals.clone();
        late[19].1 = delivery(101 * US);
        let mut marked = arrivals.clone();
        marked[2].1.marked = Some(MarkReason::Queue);
        let mut swapped = arrivals.clone();
        swapped.swap(1, 2);
        for other in [lost, late, marked, swapped, Vec::new()] {
            assert!(!adopt(&mut read(), &other));
        }
        let mut small = ReadBuffer { len: 2000, ..read() };
        assert!(!adopt(&mut small, &arrivals[..2]));
        let batch = pipe.pop_due_batch(TimeNs::from_ns(95 * US)).unwrap();
        assert_eq!((batch.data.len(), batch.segment_bytes), (19_500, 1000));
    }

    #[test]
    fn a_batch_fits_one_send() {
        let mut pipe = Pipe::default();
        let began = (0..65).filter(|_| push(&mut pipe, 1, 100, 0)).count();
        let began = began + (0..8).filter(|_| push(&mut pipe, 2, 9000, 0)).count();
        assert_eq!(began, 4);
        let sizes: Vec<_> = std::iter::from_fn(|| pipe.pop_due_batch(TimeNs::from_ns(0)))
            .map(|batch| batch.data.len())
            .collect();
        assert_eq!(sizes, [6400, 100, 63_000, 9000]);
    }
}

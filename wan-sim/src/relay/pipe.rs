//! Packets on their way, in order of delivery, joined into batches for one send each.

use crate::{Delivery, Moved, PacketName};
use quinn_udp::EcnCodepoint;
use std::collections::{BTreeMap, VecDeque};
use units::{Span, TimeNs};

/// What one direction of the link holds. Bounded by the link: its queue, plus its rate
/// times its delay.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    batches: VecDeque<Batch>,
    spare: Vec<Vec<u8>>,
}

/// Datagrams of one flow and one size, the last one perhaps shorter.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) flow: FlowId,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) segment_bytes: usize,
    pub(super) data: Vec<u8>,
    /// When the last of them arrives; the first does at most [`BATCH_SPAN_MAX`] before.
    due: TimeNs,
    first_due: TimeNs,
    /// The last of them.
    last: PacketName,
    /// A shorter datagram ends it.
    closed: bool,
}

/// What one read returned: datagrams of one size, the last one perhaps shorter.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) buffer: Vec<u8>,
    pub(super) len: usize,
    pub(super) segment_bytes: usize,
}

/// One client of one forward. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId(pub(super) u64);

impl Pipe {
    /// Adds a datagram that arrives as `delivery` says. Returns whether it began a batch.
    pub(super) fn push(
        &mut self,
        flow: FlowId,
        ecn: Option<EcnCodepoint>,
        datagram: &[u8],
        (name, delivery): (PacketName, Delivery),
    ) -> bool {
        let at = delivery.at;
        let ecn = if delivery.marked.is_some() { Some(EcnCodepoint::Ce) } else { ecn };
        let bit = delivery.corrupt_bit;
        if let Some(last) = self.batches.back_mut()
            && last.takes(flow, ecn, datagram.len(), at)
        {
            append(&mut last.data, datagram, bit);
            last.due = at;
            last.last = name;
            last.closed = datagram.len() < last.segment_bytes;
            return false;
        }
        let mut data = self.spare.pop().unwrap_or_default();
        data.clear();
        append(&mut data, datagram, bit);
        self.insert(Batch {
            flow,
            ecn,
            segment_bytes: datagram.len(),
            data,
            due: at,
            first_due: at,
            last: name,
            closed: datagram.is_empty(),
        });
        true
    }

    /// Takes a whole buffer of datagrams at once, in exchange for an empty one, where all of
    /// them arrive together and unharmed and a copy is worth avoiding. Returns whether it did.
    pub(super) fn adopt(
        &mut self,
        flow: FlowId,
        ecn: Option<EcnCodepoint>,
        read: &mut Read,
        arrivals: &[(PacketName, Delivery)],
    ) -> bool {
        let [(_, first), .., (last, latest)] = arrivals else { return false };
        let whole = arrivals.len() == read.len.div_ceil(read.segment_bytes)
            && arrivals.len() <= BATCH_SEGMENTS_MAX
            && (ADOPTED_BYTES_MIN..=BATCH_BYTES_MAX).contains(&read.len)
            && latest.at.since(first.at) <= BATCH_SPAN_MAX
            && arrivals.is_sorted_by_key(|(_, delivery)| delivery.at)
            && arrivals.iter().all(|(name, delivery)| {
                !name.copy && delivery.marked.is_none() && delivery.corrupt_bit.is_none()
            });
        if !whole {
            return false;
        }
        let empty = self.spare.pop().unwrap_or_default();
        let mut data = std::mem::replace(&mut read.buffer, empty);
        data.truncate(read.len);
        self.insert(Batch {
            flow,
            ecn,
            segment_bytes: read.segment_bytes,
            data,
            due: latest.at,
            first_due: first.at,
            last: *last,
            closed: true,
        });
        true
    }

    fn insert(&mut self, batch: Batch) {
        // At the end, except where packets overtake.
        let before = self.batches.iter().rposition(|other| other.due <= batch.due);
        self.batches.insert(before.map_or(0, |place| place + 1), batch);
    }

    /// The next batch that has arrived by `now`.
    pub(super) fn pop_due(&mut self, now: TimeNs) -> Option<Batch> {
        self.next_due().filter(|due| *due <= now)?;
        self.batches.pop_front()
    }

    /// When the next batch arrives.
    pub(super) fn next_due(&self) -> Option<TimeNs> {
        self.batches.front().map(|batch| batch.due)
    }

    /// Gives packets that a change of the link moved their new time.
    pub(super) fn move_to(&mut self, moved: &[Moved]) {
        let moved: BTreeMap<_, _> = moved.iter().map(|moved| (moved.packet, moved.at)).collect();
        for batch in &mut self.batches {
            if let Some(at) = moved.get(&batch.last) {
                batch.due = *at;
                batch.first_due = *at;
            }
        }
        self.batches.make_contiguous().sort_by_key(|batch| batch.due);
    }

    /// Takes back a sent batch's memory.
    pub(super) fn recycle(&mut self, batch: Batch) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch.data);
        }
    }
}

impl Batch {
    /// When it was to leave.
    pub(super) fn due(&self) -> TimeNs {
        self.due
    }

    fn takes(&self, flow: FlowId, ecn: Option<EcnCodepoint>, bytes: usize, at: TimeNs) -> bool {
        !self.closed
            && self.flow == flow
            && self.ecn == ecn
            && (1..=self.segment_bytes).contains(&bytes)
            && self.data.len() + bytes <= BATCH_BYTES_MAX
            && self.data.len() / self.segment_bytes < BATCH_SEGMENTS_MAX
            && at >= self.due
            && at.since(self.first_due) <= BATCH_SPAN_MAX
    }
}

/// Adds `datagram`, with its bit number `corrupt_bit` flipped.
fn append(data: &mut Vec<u8>, datagram: &[u8], corrupt_bit: Option<u32>) {
    let from = data.len();
    data.extend_from_slice(datagram);
    if let Some(bit) = corrupt_bit
        && !datagram.is_empty()
    {
        let bit = bit as usize % (datagram.len() * 8);
        data[from + bit / 8] ^= 1 << (bit % 8);
    }
}

/// Packets that arrive within this time go out in one send, with the last of them: a
/// wake-up for each packet costs more than the time is worth.
const BATCH_SPAN_MAX: Span = Span::from_ns(100_000);

/// What one send takes: UDP's longest payload, and the kernel's limit on segments.
const BATCH_BYTES_MAX: usize = 65_507;
const BATCH_SEGMENTS_MAX: usize = 64;

/// Below this, a copy costs less than the rest of the buffer is worth.
const ADOPTED_BYTES_MIN: usize = 16 << 10;

/// Buffers kept for reuse, each of at most [`BATCH_BYTES_MAX`].
const SPARE_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mark;

    const US: u64 = 1000;

    fn delivery(at: u64) -> Delivery {
        Delivery { at: TimeNs::from_ns(at), marked: None, corrupt_bit: None }
    }

    fn push(pipe: &mut Pipe, flow: u64, bytes: usize, at: u64) -> bool {
        pipe.push(FlowId(flow), None, &vec![0; bytes], (name(at), delivery(at)))
    }

    /// As if packets were numbered by their time.
    fn name(at: u64) -> PacketName {
        PacketName { number: at, copy: false }
    }

    #[test]
    fn a_batch_moves_with_its_last_packet() {
        let mut pipe = Pipe::default();
        push(&mut pipe, 1, 1000, 0);
        push(&mut pipe, 1, 1000, 100 * US);
        push(&mut pipe, 1, 1000, 300 * US);
        let moved = |from, to| Moved { packet: name(from), at: TimeNs::from_ns(to) };
        pipe.move_to(&[moved(100 * US, 900 * US), moved(7, 1)]);
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(300 * US)));
        let batch = pipe.pop_due(TimeNs::from_ns(300 * US)).unwrap();
        assert_eq!(batch.data.len(), 1000);
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(900 * US)));
    }

    #[test]
    fn a_batch_leaves_with_its_last_packet_and_spans_little_time() {
        let mut pipe = Pipe::default();
        assert!(push(&mut pipe, 1, 1000, 0));
        assert!(!push(&mut pipe, 1, 1000, 100 * US));
        assert!(push(&mut pipe, 1, 1000, 100 * US + 1));
        assert!(pipe.pop_due(TimeNs::from_ns(100 * US - 1)).is_none());
        let batch = pipe.pop_due(TimeNs::from_ns(100 * US)).unwrap();
        assert_eq!((batch.data.len(), batch.segment_bytes), (2000, 1000));
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(100 * US + 1)));
    }

    #[test]
    fn other_flows_longer_packets_and_packets_after_a_shorter_one_begin_anew() {
        let mut pipe = Pipe::default();
        assert!(push(&mut pipe, 1, 1000, 0));
        assert!(push(&mut pipe, 2, 1000, 0));
        assert!(push(&mut pipe, 2, 1001, 0));
        assert!(!push(&mut pipe, 2, 10, 0));
        assert!(push(&mut pipe, 2, 10, 0));
        assert!(push(&mut pipe, 2, 0, 0));
        assert!(push(&mut pipe, 2, 0, 0));
        let marked = Delivery { marked: Some(Mark::Loss), ..delivery(0) };
        assert!(pipe.push(FlowId(2), Some(EcnCodepoint::Ect0), &[0], (name(0), marked)));
        assert_eq!(pipe.batches.back().unwrap().ecn, Some(EcnCodepoint::Ce));
    }

    #[test]
    fn packets_overtake_and_bits_flip() {
        let mut pipe = Pipe::default();
        push(&mut pipe, 1, 1000, 500 * US);
        push(&mut pipe, 1, 1000, 100 * US);
        let flipped = Delivery { corrupt_bit: Some(16 + 3), ..delivery(100 * US) };
        assert!(pipe.push(FlowId(1), None, &[0, 0], (name(0), flipped)));
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(100 * US)));
        let first = pipe.pop_due(TimeNs::from_ns(100 * US)).unwrap();
        assert_eq!(first.data.len(), 1000);
        let second = pipe.pop_due(TimeNs::from_ns(100 * US)).unwrap();
        assert_eq!(second.data, [8, 0]);
        assert_eq!(pipe.next_due(), Some(TimeNs::from_ns(500 * US)));
    }

    #[test]
    fn a_whole_buffer_is_taken_only_where_all_of_it_arrives_together() {
        let mut pipe = Pipe::default();
        let read = || Read { buffer: vec![5; 65_536], len: 19_500, segment_bytes: 1000 };
        let arrivals: Vec<_> = (0..20).map(|i| (name(i), delivery(i * 5 * US))).collect();
        let mut adopt =
            |read: &mut Read, arrivals: &[_]| pipe.adopt(FlowId(1), None, read, arrivals);
        assert!(adopt(&mut read(), &arrivals));
        let mut lost = arrivals.clone();
        lost.remove(3);
        let mut late = arrivals.clone();
        late[19].1 = delivery(101 * US);
        let mut marked = arrivals.clone();
        marked[2].1.marked = Some(Mark::Queue);
        let mut swapped = arrivals.clone();
        swapped.swap(1, 2);
        for other in [lost, late, marked, swapped, Vec::new()] {
            assert!(!adopt(&mut read(), &other));
        }
        let mut small = Read { len: 2000, ..read() };
        assert!(!adopt(&mut small, &arrivals[..2]));
        let batch = pipe.pop_due(TimeNs::from_ns(95 * US)).unwrap();
        assert_eq!((batch.data.len(), batch.segment_bytes), (19_500, 1000));
    }

    #[test]
    fn a_batch_fits_one_send() {
        let mut pipe = Pipe::default();
        let began = (0..65).filter(|_| push(&mut pipe, 1, 100, 0)).count();
        let began = began + (0..8).filter(|_| push(&mut pipe, 2, 9000, 0)).count();
        assert_eq!(began, 4);
        let sizes: Vec<_> = std::iter::from_fn(|| pipe.pop_due(TimeNs::from_ns(0)))
            .map(|batch| batch.data.len())
            .collect();
        assert_eq!(sizes, [6400, 100, 63_000, 9000]);
    }
}

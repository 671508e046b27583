use super::line::HEADER_LINE;
use super::*;
use crate::netem::Netem;
use crate::{
    CapacityRecording, Change, Conditions, EmulatedLink, LinkSpec, Packet, PacketFlow, Script,
};
use proptest::prelude::*;
use std::io::{self, BufReader, Read, Write};
use std::sync::{Arc, Mutex};
use units::TimeNs;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn link(words: &str) -> LinkSpec {
    words.parse::<Netem>().unwrap().link
}

const EVERYTHING: &str = "delay 10ms 2ms distribution normal order free loss gemodel 1% 30% 90% 1% \
                          ecn corrupt 5% duplicate 5% reorder 5% gap 3 rate 20mbit 8 queue 20kB \
                          mark-above 9kB limit 40";

fn record() -> String {
    let sink = Sink::default();
    let mut recorder = Recorder::new(Box::new(sink.clone()));
    let specs = [link(EVERYTHING), link("delay 5ms loss 10%")];
    let mut links = [EmulatedLink::new(specs[0], 3), EmulatedLink::new(specs[1], 4)];
    recorder.write_link(0, "east_west", 3, specs[0]);
    recorder.write_link(1, "west_east", 4, specs[1]);
    for i in 0..5000u64 {
        let index = usize::from(i % 3 == 0);
        let ip_bytes = 100 + (i * 37 % 1400) as u32;
        let packet = if i % 2 == 0 { Packet::ecn_capable(ip_bytes) } else { Packet::new(ip_bytes) };
        let now = TimeNs::from_ns(i * 170_001);
        match i {
            2000 => {
                let spec = link("delay 7ms rate 5mbit queue 1bdp");
                let moved = links[0].set_spec(now, spec);
                recorder.write_change(0, now, Change::Spec(spec), &moved);
            }
            3000 => {
                links[1].set_blackhole(true);
                recorder.write_change(1, now, Change::Cut, &[]);
            }
            3100 => {
                links[1].set_blackhole(false);
                recorder.write_change(1, now, Change::Join, &[]);
            }
            _ => {}
        }
        let offered = links[index].offer(now, packet);
        recorder.write_packet(index, now, packet, &offered);
    }
    recorder.finish().unwrap();
    String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn a_recording_replays_byte_for_byte() {
    let text = record();
    for part in [
        "marked:loss",
        "marked:queue",
        "bit:",
        "copy",
        "drop:loss",
        "drop:limit",
        "drop:blackhole",
        "0 moved ",
    ] {
        assert!(text.contains(part), "{part} is not in the recording");
    }
    let replayed = replay(text.as_bytes()).unwrap();
    let packets: Vec<_> = replayed.links.iter().map(|(_, seen)| seen.packets).collect();
    assert_eq!(packets, [3333, 1667]);
    assert_eq!(replayed.links[0].0, "east_west");
}

#[test]
fn a_recording_that_was_changed_is_found_out() {
    let text = record();
    for (from, to) in
        [("seed 4", "seed 5"), ("drop:loss", "drop:queue"), ("1 cut\n", ""), ("moved 1", "moved 2")]
    {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        let error = replay(changed.as_bytes()).unwrap_err();
        assert!(matches!(error, ReplayError::Different { .. }), "{from}: {error}");
    }
    for text in ["", "wan-sim recording 2\n", "wan-sim recording 1\n0 1 2 not 3\n"] {
        let error = replay(text.as_bytes()).unwrap_err();
        assert!(matches!(error, ReplayError::Malformed { .. }), "{text}: {error}");
    }
}

#[test]
fn a_recording_that_cannot_be_written_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let error = Recorder::new(Box::new(Full)).finish().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn scripted_changes_replay() {
    let sink = Sink::default();
    let mut recorder = Recorder::new(Box::new(sink.clone()));
    let spec = link("delay 5ms rate 8mbit queue 1MB");
    let ms = |ms: u64| TimeNs::from_ns(ms * 1_000_000);
    let changes = [
        (ms(5), Change::Spec(link("delay 1ms rate 80mbit queue 1MB"))),
        (ms(20), Change::Cut),
        (ms(30), Change::Join),
    ];
    let script = Script::new(changes, [2, 7]);
    recorder.write_link(0, "a_b", 1, spec);
    recorder.write_script(0, &script);
    let mut scripted = EmulatedLink::scripted(spec, script, 1);
    for i in 0..50 {
        let packet = Packet::new(1000);
        let offered = scripted.offer(ms(i), packet);
        recorder.write_packet(0, ms(i), packet, &offered);
    }
    recorder.finish().unwrap();
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    let [(_, seen)] = replay(text.as_bytes()).unwrap().links[..] else { panic!("one link") };
    assert_eq!((seen.drops_script, seen.drops_blackhole), (2, 10));
    let changed = text.replacen("at 20000000 cut", "at 21000000 cut", 1);
    assert!(matches!(replay(changed.as_bytes()), Err(ReplayError::Different { .. })));
}

#[test]
fn conditions_and_late_decisions_replay() {
    let sink = Sink::default();
    let mut recorder = Recorder::new(Box::new(sink.clone()));
    let spec = link("delay 5ms rate 8mbit queue 1MB codel 2ms 20ms duplicate 5%");
    let times: Vec<_> = (1..=300).collect();
    let conditions = Conditions {
        capacity: Some(Arc::new(CapacityRecording::new(times).unwrap())),
        parallel: vec![link("delay 1ms rate 4mbit queue 10kB")],
        cross: vec!["cubic".parse().unwrap(), "onoff rate 1mbit on 9ms off 5ms".parse().unwrap()],
    };
    recorder.write_link(0, "a_b", 1, spec);
    recorder.write_conditions(0, &conditions);
    let mut recorded = EmulatedLink::under(spec, Script::default(), &conditions, 1);
    let ns = TimeNs::from_ns;
    for i in 0..2000u64 {
        let packet = Packet::ecn_capable(1000).with_flow(PacketFlow::new(i % 7));
        let offered = recorded.offer(ns(i * 700_001), packet);
        recorder.write_packet(0, ns(i * 700_001), packet, &offered);
        // The front end looks when it wakes up, not when packets come.
        let decided = recorded.take_decided(ns(i * 700_001 + i % 5 * 99_999));
        recorder.write_decided(0, &decided);
    }
    recorder.write_decided(0, &recorded.take_decided(ns(9_000_000_000)));
    recorder.finish().unwrap();
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    for part in [" queued", "0 decided ", "marked:codel", "flow:3", "drop:queue", " copy queued"] {
        assert!(text.contains(part), "{part} is not in the recording");
    }
    let [(_, seen)] = replay(text.as_bytes()).unwrap().links[..] else { panic!("one link") };
    assert_eq!(seen, recorded.counters());
    let changed = text.replacen("0 cross cubic", "0 cross bbr", 1);
    assert!(matches!(replay(changed.as_bytes()), Err(ReplayError::Different { .. })));
    let changed = text.replacen("0 delivers 1 2", "0 delivers 2 1", 1);
    assert!(matches!(replay(changed.as_bytes()), Err(ReplayError::Malformed { .. })));
}

proptest! {
    #[test]
    fn no_recording_panics(lines in "(link 0 a delay 1ms seed 1\n)?([0-2] [0-9a-z ]{0,30}\n){0,9}") {
        let _ = replay(format!("{HEADER_LINE}\n{lines}").as_bytes());
    }
}

#[test]
fn an_endless_line_is_refused_before_memory_is_full() {
    let endless = BufReader::new(io::Cursor::new(HEADER_LINE).chain(io::repeat(b' ')));
    let error = replay(endless).unwrap_err().to_string();
    assert!(error.contains("longer than 4096 bytes"), "{error}");
}

//! Checks, silence and their bounds, without a connection.

use super::*;

/// Returns the seconds of silence after which a peer is lost, without and with a way round.
fn lost_after_secs(rtt_ms: u64) -> [u64; 2] {
    let peer = PeerLiveness::default();
    let rtt = Span::from_ms(rtt_ms);
    let alone = peer.lost_after(rtt).as_secs();
    peer.set_can_go_round(true);
    [alone, peer.lost_after(rtt).as_secs()]
}

#[test]
fn a_link_with_a_way_round_is_lost_sooner() {
    assert_eq!(lost_after_secs(2), [15, 8]);
    assert_eq!(lost_after_secs(600), [15, 8]);
    assert_eq!(lost_after_secs(1000), [15, 9]);
    assert_eq!(lost_after_secs(60_000), [181; 2]);
}

#[test]
fn a_silence_in_the_fabric_replaces_the_usual() {
    for (silence, rtt_ms, seconds) in [(5, 2, 5), (5, 80, 5), (3, 2000, 7), (12, 2, 8), (15, 2, 8)]
    {
        let peer = PeerLiveness::new(Patience::default(), Some(Span::from_secs(silence)));
        peer.set_can_go_round(true);
        assert_eq!(peer.lost_after(Span::from_ms(rtt_ms)).as_secs(), seconds, "{silence} s");
    }
    let alone = PeerLiveness::new(Patience::default(), Some(Span::from_secs(12)));
    assert_eq!(alone.lost_after(Span::from_ms(2)).as_secs(), 12);
}

#[test]
fn a_patience_in_the_fabric_sets_all_silences() {
    for (patience, rtt_ms, alone_ms, round_ms, idle_ms) in
        [(6, 2, 6000, 3200, 15_000), (6, 400, 6000, 3600, 15_000), (60, 80, 60_000, 32_000, 60_000)]
    {
        let patience = Patience::of_span(Span::from_secs(patience)).expect("valid");
        let (peer, rtt) = (PeerLiveness::new(patience, None), Span::from_ms(rtt_ms));
        assert_eq!(peer.lost_after(rtt).as_millis(), alone_ms, "{patience:?}");
        peer.set_can_go_round(true);
        assert_eq!(peer.lost_after(rtt).as_millis(), round_ms, "{patience:?}");
        assert_eq!(peer.idle_timeout(rtt).as_millis(), idle_ms, "{patience:?}");
    }
}

/// A lane with a round trip of 100 ms whose looks come as planned, or as the test says.
struct Lane {
    silence: LaneLiveness,
    peer: PeerLiveness,
    view: LivenessSample,
}

impl Lane {
    fn new() -> Self {
        let peer = PeerLiveness::default();
        let silence = LaneLiveness::new(TimeNs::from_ns(1_500_000_000), &peer);
        let view = LivenessSample { round: Span::from_ms(100), ..silence.last };
        let mut lane = Self { silence, peer, view };
        lane.look(Span::ZERO);
        lane
    }

    /// Takes a look `late` after the last one.
    fn look(&mut self, late: Span) {
        self.view.at = self.silence.last.at + late;
        self.silence.look(&self.view, &self.peer);
    }

    /// Takes `count` looks as planned; returns the time that they took.
    fn look_as_planned(&mut self, count: usize) -> Span {
        let begun = self.silence.last.at;
        for _ in 0..count {
            let next = self.silence.plan_look(false);
            self.look(next.since(self.silence.last.at));
        }
        self.silence.last.at.since(begun)
    }
}

#[test]
fn an_idle_lane_is_looked_at_once_a_tick() {
    let mut lane = Lane::new();
    let mut looks = Vec::new();
    for _ in 0..3 {
        // A keep-alive comes between two looks.
        lane.view.datagrams += 1;
        looks.push(lane.look_as_planned(1));
    }
    assert_eq!(looks, [Span::from_ms(500), Span::from_secs(1), Span::from_secs(1)]);
    assert!(!lane.silence.silent && lane.silence.mute == Span::ZERO);
}

#[test]
fn bytes_are_silent_a_round_trip_after_they_left() {
    let mut lane = Lane::new();
    lane.silence.plan_look(false);
    lane.view.in_flight = true;
    lane.look(Span::from_ms(30));
    assert!(!lane.silence.silent, "they have just left");
    assert_eq!(lane.look_as_planned(1), Span::from_ms(100));
    assert_eq!(lane.silence.length(), Span::from_ms(100));
    assert_eq!(lane.look_as_planned(2), Span::from_ms(100), "each half round trip from then on");
    lane.view.acked_packets += 1;
    lane.look_as_planned(1);
    assert_eq!(lane.silence.length(), Span::ZERO);
    assert_eq!(lane.look_as_planned(1), Span::from_ms(100));
    assert!(lane.silence.silent, "no acknowledgement since");
}

#[test]
fn a_mute_peer_is_found_in_time_after_idle_time() {
    let mut lane = Lane::new();
    lane.look_as_planned(3);
    assert_eq!(lane.silence.mute, Span::from_ms(2500));
    while lane.silence.mute < Span::from_secs(15) {
        assert_eq!(lane.look_as_planned(1), Span::from_ms(100), "it is looked at closely");
    }
    assert_eq!(lane.silence.mute, Span::from_secs(15));
}

#[test]
fn a_lane_that_receives_data_is_looked_at_closely() {
    let mut lane = Lane::new();
    lane.look_as_planned(1);
    lane.view.datagrams += 3;
    lane.look_as_planned(1);
    assert_eq!(lane.look_as_planned(1), Span::from_ms(100));
}

#[test]
fn no_peer_is_silent_while_this_process_is_stopped() {
    let mut lane = Lane::new();
    lane.view.in_flight = true;
    lane.look_as_planned(1);
    lane.silence.plan_look(false);
    lane.look(Span::from_secs(60));
    assert!(lane.silence.mute < Span::from_secs(1), "{}", lane.silence.mute);
    assert_eq!(lane.silence.alone, Span::ZERO);
}

#[test]
fn a_path_silent_while_others_are_heard_is_dead() {
    let mut lane = Lane::new();
    lane.view.in_flight = true;
    lane.look_as_planned(2);
    assert!(lane.silence.silent && !lane.silence.is_path_dead(lane.view.round));
    let mut looks = 0;
    while !lane.silence.is_path_dead(lane.view.round) {
        lane.peer.heard_ns.fetch_add(1, Ordering::Relaxed);
        lane.look_as_planned(1);
        looks += 1;
    }
    assert_eq!(looks, 13, "more than six round trips, of two looks each");
}

#[test]
fn acknowledgements_alone_await_no_acknowledgement() {
    let telemetry = LaneTelemetry::new(1200);
    let (mut sent, mut frames) = (LivenessFrames::default(), FrameStats::default());
    telemetry.in_flight.note_sent(40);
    frames.acks += 1;
    assert!(!sent.is_awaiting_acknowledgement(&frames, &telemetry));
    assert_eq!(telemetry.in_flight.bytes(), 0);
    telemetry.in_flight.note_sent(40);
    frames.datagram += 1;
    assert!(sent.is_awaiting_acknowledgement(&frames, &telemetry), "a probe");
    telemetry.in_flight.note_acked(0, true);
    assert!(!sent.is_awaiting_acknowledgement(&frames, &telemetry));
    telemetry.in_flight.note_sent(40);
    frames.acks += 1;
    assert!(!sent.is_awaiting_acknowledgement(&frames, &telemetry));
}

#[test]
fn a_silent_end_is_remembered_for_a_moment() {
    let peer = PeerLiveness::default();
    let second = |number: u64| TimeNs::from_ns(number * 1_000_000_000);
    assert!(!peer.has_ended_silent(second(1)));
    peer.note_silent_end(second(10));
    let remembered = [10, 12, 13, 100].map(|number| peer.has_ended_silent(second(number)));
    assert_eq!(remembered, [true, true, false, false]);
}

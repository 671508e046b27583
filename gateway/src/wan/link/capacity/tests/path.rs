//! RTT inflation, min RTT and random loss.

use super::Pair;
use units::Span;

#[test]
fn rtt_inflation_begins_after_three_spans_and_ends_after_one() {
    let mut pair = Pair::new(0);
    pair.pass_rtts(1000, &[50, 50, 50, 150, 52, 160, 170, 74]);
    assert_eq!(pair.capacity.inflated_rtt(), None, "now and then, and by less than half");
    pair.pass_rtts(1000, &[150, 170, 160]);
    assert_eq!(pair.capacity.inflated_rtt(), Some(Span::from_ms(150)));
    assert_eq!(pair.capacity.min_rtt(), Some(Span::from_ms(50)), "as plans have it");
    pair.pass_rtts(1000, &[180]);
    assert_eq!(pair.capacity.inflated_rtt(), Some(Span::from_ms(160)));
    pair.pass_rtts(1000, &[50]);
    assert_eq!(pair.capacity.inflated_rtt(), None);
}

/// Spans of few packets last until there are enough, or for two seconds.
#[test]
fn few_packets_end_rtt_inflation_and_do_not_begin_it() {
    let mut pair = Pair::new(0);
    pair.pass_rtts(1000, &[50; 2]);
    pair.pass_rtts(1, &[150; 200]);
    assert_eq!(pair.capacity.inflated_rtt(), None);
    pair.pass_rtts(1000, &[150; 4]);
    assert!(pair.capacity.inflated_rtt().is_some());
    pair.pass_rtts(1, &[50; 21]);
    assert_eq!(pair.capacity.inflated_rtt(), None);
}

#[test]
fn random_loss_is_measured() {
    let mut pair = Pair::new(0);
    assert_eq!(pair.capacity.random_loss(), None);
    pair.pass(50, 400.0, 900.0, 0.02);
    let loss = pair.capacity.random_loss().expect("enough packets").as_f64();
    assert!((0.019..0.021).contains(&loss), "{loss}");
    assert_eq!(pair.capacity.min_rtt(), Some(Span::from_ms(51)));
}

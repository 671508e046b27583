use super::figures::{BUSY, LAB, OURS, PEERS, VIRTUAL, bulk};
use super::verdict::verdicts;
use crate::arms::attach::{Attached, Transfer};
use crate::arms::simulated::{FIXED_ONE_WAY, FIXED_WINDOW, ONE_SEGMENT};
use crate::cell::Cell;
use crate::lab::testbed::Ground;
use crate::measured::{Arm, Asked, Measured, Took};
use crate::row::{COMMON, Row};
use hier_collectives::plan::Operation;
use std::time::Duration;
use units::Span;

#[test]
fn a_void_cell_meets_no_bound() {
    let row = Row::matrix(false)[0];
    let cell =
        |who: &str, seconds| Cell::new(who, Ground::Lab.name(), COMMON, vec![seconds], seconds);
    let mut cells: Vec<_> = PEERS.iter().map(|who| (row, cell(who, 2.0))).collect();
    cells.push((row, cell(OURS, 1.0)));
    let of = |cells: &[(Row, Cell)]| {
        let asked = Asked { rows: vec![row], arms: vec![Arm::Lab], long: false };
        let measured = Measured { cells: cells.to_vec(), asked, ..Measured::default() };
        let mut verdicts = verdicts(&measured).into_iter();
        verdicts.find(|verdict| verdict.wanted.contains("peer")).expect("a verdict")
    };
    let good = of(&cells);
    assert!(good.met && good.worst.starts_with("2.000 ("), "{good:?}");
    for index in 0..cells.len() {
        let mut some = cells.clone();
        some[index].1.void = Some("late".to_owned());
        let verdict = of(&some);
        assert!(!verdict.met && (verdict.figures, verdict.void) == (0, 1), "{verdict:?}");
        some.remove(index);
        let missing = of(&some);
        assert!(!missing.met && (missing.figures, missing.void) == (0, 1), "{missing:?}");
    }
    cells[0].1.seconds = Some(0.5);
    let slower = of(&cells);
    assert!(!slower.met && slower.worst.starts_with("0.500 ("), "{slower:?}");
}

#[test]
fn each_operation_is_held_to_the_best_peer() {
    let row = Row::of_operations()[2];
    let slower = |operation: Operation, times: f64| {
        let of = |who: &str, seconds| Cell {
            operation: operation.name(),
            ..Cell::new(who, LAB, COMMON, vec![seconds], 1.0)
        };
        let peers = PEERS.iter().map(|who| (row, of(who, times)));
        peers.chain([(row, of(OURS, 1.0))]).collect::<Vec<_>>()
    };
    let of = |gather, exchange| {
        let all = [(Operation::AllGather, gather), (Operation::AllToAll, exchange)];
        let cells = all.map(|(operation, times)| slower(operation, times)).concat();
        let asked = Asked { rows: vec![row], arms: vec![Arm::Operations], long: false };
        let mut verdicts = verdicts(&Measured { cells, asked, ..Measured::default() }).into_iter();
        verdicts.find(|verdict| verdict.wanted.contains("all-to-all, 80 ms")).expect("a verdict")
    };
    let good = of(1.4, 1.35);
    assert!(good.met && good.figures == 2, "{good:?}");
    for (bad, of_which) in [(of(1.4, 1.2), "all-to-all"), (of(1.2, 1.4), "all-gather")] {
        assert!(!bad.met && bad.worst.contains(of_which), "{bad:?}");
    }
}

#[test]
fn a_slow_transfer_of_a_trainer_meets_no_bound() {
    let met = |slow: f64, void: Option<String>| {
        let (gbit, tcp_gbit, tls_gbit, none) = (0.9, 1.0, 0.95, None);
        let of = |transfer: Transfer| Attached {
            transfer,
            gbit,
            tcp_gbit,
            tls_gbit,
            void: none.clone(),
        };
        let mut attached: Vec<Attached> = Transfer::all().into_iter().map(of).collect();
        (attached[3].gbit, attached[3].void) = (slow, void);
        let asked = Asked { rows: vec![], arms: vec![Arm::Attach], long: false };
        verdicts(&Measured { attached, asked, ..Measured::default() })[0].met
    };
    assert!(met(0.71, None) && !met(0.69, None) && !met(0.71, Some("late".to_owned())));
}

#[test]
fn a_busy_machine_has_a_bound_of_its_own() {
    let row = Row::matrix(false)[0];
    let met = |who: &str, eta: f64, about: &str| {
        let cells = vec![(row, Cell::new(who, LAB, COMMON, vec![1.0], eta))];
        let asked = Asked { rows: vec![row], arms: vec![Arm::Lab], long: false };
        let verdicts = verdicts(&Measured { cells, asked, ..Measured::default() });
        verdicts.into_iter().find(|verdict| verdict.wanted.contains(about)).expect("one").met
    };
    assert!(met(BUSY, 0.91, "two busy") && !met(BUSY, 0.89, "two busy"));
    assert!(met(OURS, 0.96, "2 ms clean: eta") && !met(OURS, 0.94, "2 ms clean: eta"));
    assert!(!met(OURS, 0.96, "two busy"), "the idle machine's eta says nothing of it");
}

#[test]
fn timed_out_controls_meet_no_bound() {
    let rows = Row::matrix(false);
    let far = |row: &&Row| row.rtt >= Span::from_ms(80) && row.loss.as_f64() == 0.0;
    let row = rows.iter().find(far).expect("a row at 80 ms");
    let cell = |who: &str, seconds: Option<f64>| {
        let took = seconds.unwrap_or(1.0);
        (*row, Cell { seconds, ..Cell::new(who, "virtual", COMMON, vec![took], took) })
    };
    let of = |control: &str, seconds, ours| {
        let cells = vec![cell(control, seconds), cell(OURS, ours)];
        let asked = Asked { rows: vec![*row], arms: vec![Arm::Virtual], long: false };
        let verdicts = verdicts(&Measured { cells, asked, ..Measured::default() });
        let about = if control == FIXED_ONE_WAY { "window" } else { "one segment" };
        let found = verdicts.into_iter().find(|verdict| verdict.wanted.contains(about));
        found.expect("a verdict").met
    };
    let fits = COMMON as f64 * row.rtt.as_secs_f64() / FIXED_WINDOW as f64;
    assert!(of(FIXED_ONE_WAY, Some(fits), Some(0.6)));
    assert!(!of(FIXED_ONE_WAY, None, Some(0.6)), "cut, and what it had is unknown");
    let whole = ONE_SEGMENT;
    assert!(of(whole, None, Some(0.6)), "cut, so slower than ours");
    assert!(!of(whole, Some(0.61), Some(0.6)) && of(whole, Some(1.2), Some(0.6)));
    assert!(!of(whole, None, None));
}

#[test]
fn two_timed_out_runs_do_not_count_as_equal() {
    assert!(apart_at(80, Some(0.9), Some(0.9)) && !apart_at(80, None, None));
}

#[test]
fn a_short_link_is_not_far_from_virtual_time_either() {
    assert!(apart_at(2, Some(0.97), Some(0.98)) && !apart_at(2, Some(0.90), Some(0.98)));
}

/// The verdict, where all of ours are done with these etas in the lab and in virtual time.
fn apart_at(rtt_ms: u64, lab: Option<f64>, simulated: Option<f64>) -> bool {
    let rows = Row::matrix(false);
    let row = rows.iter().find(|row| row.rtt == Span::from_ms(rtt_ms)).expect("a row");
    let cell = |bytes, (arm, eta): (_, Option<f64>)| {
        let cell = Cell::new(OURS, arm, bytes, vec![1.0], 1.0);
        (*row, Cell { seconds: eta, eta, ..cell })
    };
    let both = [(LAB, lab), (VIRTUAL, simulated)];
    let cells = bulk(row).flat_map(|bytes| both.map(|arm| cell(bytes, arm))).collect();
    let arms = vec![Arm::Lab, Arm::Virtual];
    let asked = Asked { rows: vec![*row], arms, long: false };
    let verdicts = verdicts(&Measured { cells, asked, ..Measured::default() });
    let found = verdicts.into_iter().find(|verdict| verdict.wanted.contains("apart"));
    found.expect("a verdict").met
}

#[test]
fn a_bench_that_takes_too_long_has_missed_its_bound() {
    let of = |minutes: u64| {
        let span = |minutes: u64| Duration::from_secs(60 * minutes);
        let took = Some(Took { whole: span(minutes), at_most: span(45) });
        verdicts(&Measured { took, ..Measured::default() })
    };
    let late = of(46);
    assert!(!late[0].met && late[0].worst.contains("46.0 of 45"), "{late:?}");
    assert!(of(45)[0].met);
    assert!(verdicts(&Measured::default()).is_empty(), "an arm alone is held to nothing");
}

#[test]
fn missing_figures_meet_no_bound() {
    let arms = vec![Arm::Virtual, Arm::Lab, Arm::Cpu, Arm::Operations, Arm::Attach];
    let asked = Asked { rows: Row::matrix(false), arms, long: true };
    let verdicts = verdicts(&Measured { asked, ..Measured::default() });
    assert_eq!(verdicts.len(), 21, "all but the time and netem: {verdicts:?}");
    for verdict in verdicts {
        assert!(!verdict.met && verdict.figures == 0 && verdict.void > 0, "{verdict:?}");
    }
}

use super::netem_parser::ACCEPTED_WORDS;
use super::*;
use crate::{
    Codel, Discipline, GilbertElliott, Jitter, LinkSpec, Loss, Order, Policer, Red, Reorder, Shape,
};
use proptest::prelude::*;
use units::{BitRate, ByteCount, Fraction, Span};

fn parse(text: &str) -> Result<Netem, NetemError> {
    text.parse()
}

fn link(text: &str) -> LinkSpec {
    parse(text).unwrap().link
}

#[test]
fn words_make_the_link_they_describe() {
    let words = link("delay 40ms 2ms distribution normal loss 1% rate 1gbit limit 2000");
    let rate = BitRate::from_bits_per_second(1_000_000_000);
    let jitter = Jitter { spread: Span::from_ms(2), shape: Shape::Normal, order: Order::Kept };
    let built = LinkSpec::new(rate, Span::from_ms(40))
        .unwrap()
        .with_queue(ByteCount::new(u64::MAX))
        .with_jitter(jitter)
        .unwrap()
        .with_loss(Fraction::from_ppb(10_000_000).unwrap())
        .with_limit(2000.try_into().unwrap());
    assert_eq!(words, built);
}

#[test]
fn units_are_those_of_tc() {
    for (one, other) in [
        ("delay 1s", "delay 1000ms"),
        ("delay 1sec", "delay 1000000us"),
        ("delay 2msecs", "delay 2000000nsec"),
        ("latency 1.5ms", "delay 1500us"),
        ("rate 1gbit", "rate 1000Mbit"),
        ("rate 125mbps", "rate 1gbit"),
        ("rate 1kbps", "rate 8kbit"),
        ("drop 1%", "loss random 1%"),
        ("loss gemodel 1% 10%", "loss gemodel 1% 10% 100% 0%"),
        ("loss gemodel 1%", "loss gemodel 1% 99%"),
        ("delay 1ms reorder 5%", "delay 1ms reorder 5% gap 1"),
        ("delay 1ms", "delay 1ms limit 1000"),
        ("delay 2ms 1ms", "delay 2ms 1ms order free"),
        ("delay 2ms 0ms", "delay 2ms"),
        ("delay 2ms reorder 0%", "delay 2ms"),
        ("loss 0% corrupt 0%", "limit 1000"),
        (
            "delay 1ms rate 10000000tbit queue 1000000h",
            "delay 1ms rate 10000000tbit queue 18446744073709551615B",
        ),
        ("delay 2ms 1ms rate 1gbit", "delay 2ms 1ms rate 1gbit order kept"),
    ] {
        assert_eq!(link(one), link(other), "{one}");
    }
}

/// The table of docs/netem.md: an accepted word changes the link that the rest of its example
/// makes, a refused one gives the error it names.
#[test]
fn the_documentation_lists_every_word_with_its_effect() {
    let page = include_str!("../../../docs/netem.md");
    let tests = [
        include_str!("tests.rs"),
        include_str!("../link/tests/mod.rs"),
        include_str!("../link/tests/disciplines.rs"),
        include_str!("../random_stream.rs"),
        include_str!("../../tests/statistics.rs"),
    ];
    let (mut accepted, mut refused) = (0, 0);
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let code = |cell: &str| cell.split('`').nth(1).unwrap().to_owned();
        let example = code(cells[1]);
        match cells[2] {
            "yes" => {
                accepted += 1;
                let without = code(cells[3]);
                assert_ne!(parse(&example).unwrap(), parse(&without).unwrap(), "{row}");
                let proof = format!("\nfn {}() {{", cells[4]);
                let has_proof = |test: &&str| test.replace("    fn ", "fn ").contains(&proof);
                assert!(tests.iter().any(has_proof), "no such test: {row}");
            }
            "no" => {
                refused += 1;
                let error = parse(&example).unwrap_err().to_string();
                assert_eq!(
                    error,
                    cells[3].trim_start_matches("`` ").trim_end_matches(" ``"),
                    "{row}"
                );
            }
            other => panic!("{other}: {row}"),
        }
        let word = code(cells[0]);
        assert!(example.contains(word.split(' ').next().unwrap()), "{row}");
    }
    assert!(accepted >= 15 && refused >= 10, "{accepted} accepted, {refused} refused");
    for word in ACCEPTED_WORDS.split(", ").map(str::trim) {
        assert!(page.contains(&format!("| `{word}")), "{word} is not documented");
    }
}

#[test]
fn an_error_names_the_word_and_the_accepted_ones() {
    for (text, word, accepted) in [
        ("delay", "`delay`", "40ms"),
        ("delay -1ms", "`-1ms`", "40ms"),
        ("delay 40", "`40`", "ms"),
        ("delay 2h", "`2h`", "ms"),
        ("rate 0bit", "`0bit`", "above zero"),
        ("rate -1gbit", "`-1gbit`", "1gbit"),
        ("rate 1", "`1`", "1gbit"),
        ("loss 101%", "`101%`", "100%"),
        ("loss 0.3", "`0.3`", "0.1%"),
        ("limit 0", "`0`", "above zero"),
        ("teleport 1ms", "`teleport`", "delay"),
        ("delay 1ms 2ms", "2 ms", "1 ms"),
        ("rate 1gbit queue 5", "`5`", "5MB"),
        ("delay 40ms 2", "`2`", "2ms"),
        ("loss gemodel 1% 101%", "`101%`", "0.1%"),
        ("loss 1% drop 2%", "`loss`", "give one"),
        ("loss 0% ecn", "`ecn`", "without loss"),
        ("loss gemodel 0% ecn", "`ecn`", "without loss"),
        ("loss gemodel 1% 10% 0% ecn", "`ecn`", "without loss"),
        ("rate 1gbit mark-above 1GB queue 1kB", "`mark-above`", "a queue that holds more"),
        ("rate 1gbit mark-above 1kB queue 1kB", "`mark-above`", "a queue that holds more"),
        ("delay 1ms reorder 0% gap 5", "`gap`", "without reorder"),
        ("delay 1ms gap 5", "`gap`", "without reorder"),
        ("rate 1gbit queue 1bdp", "`queue`", "20 ms"),
        ("delay 1us rate 1gbit queue 5bdp", "`queue`", "1.25 kB"),
        ("delay 1ms 0ms distribution normal", "`distribution`", "without a jitter"),
        ("delay 1ms latency 2ms", "`delay`", "give one"),
        ("codel", "`codel`", "without rate"),
        ("rate 1gbit queue 1MB codel 5ms", "`codel`", "5ms 100ms"),
        ("rate 1gbit queue 1MB codel 100ms 5ms", "codel", "5 ms and 100 ms"),
        ("rate 1gbit queue 1MB red 300kB 100kB 10%", "300 kB", "100 kB"),
        ("rate 1gbit queue 1MB red 100kB 300kB", "`red`", "0.2%"),
        ("rate 1gbit queue 1MB red 100kB 300kB 0%", "red", "above zero"),
        ("rate 1gbit queue 1kB red 100kB 300kB 1%", "`red`", "a queue that holds more"),
        ("rate 1gbit queue 1MB codel red 100kB 300kB 1%", "`red`", "one of codel, red"),
        ("rate 1gbit queue 1MB codel mark-above 1kB", "`mark-above`", "one discipline"),
        ("policer 1gbit 1kB", "1 kB", "1.5 kB"),
        ("policer 1gbit", "`policer`", "150kB"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(accepted), "{text}: {error}");
        assert!(!error.contains('\n'), "{text}");
    }
}

fn chance() -> impl Strategy<Value = Fraction> {
    (0u32..=1_000_000_000).prop_map(|ppb| Fraction::from_ppb(ppb).unwrap())
}

prop_compose! {
    fn any_link()(
        (rate, delay, reach) in (prop::option::of(1u64..), 0..=3_600_000_000_000u64, 0u64..=1000),
        (queue, overhead, mark) in (any::<u64>(), any::<u16>(), any::<Option<u64>>()),
        (normal, free, marks) in any::<(bool, bool, bool)>(),
        (limit, gap) in (prop::option::of(1u32..), prop::option::of(1u32..)),
        (a, b, c, d) in (chance(), chance(), chance(), chance()),
        (burst, duplicate, corrupt) in (any::<bool>(), chance(), chance()),
        discipline in 0..3u8,
        policer in prop::option::of((1u64.., 1500u64..)),
    ) -> LinkSpec {
        let delayed = LinkSpec::unlimited(Span::from_ns(delay)).unwrap();
        let mut link = rate.map_or(delayed, |rate| {
            let link = LinkSpec::new(BitRate::from_bits_per_second(rate), delayed.delay()).unwrap();
            link.with_overhead(overhead).with_queue(ByteCount::new(queue))
        });
        link = link
            .with_duplicate(duplicate)
            .with_corrupt(corrupt)
            .with_loss(a);
        let spread = Span::from_ns(delay / 4 * reach / 1000);
        if spread > Span::ZERO {
            let shape = if normal { Shape::Normal } else { Shape::Uniform };
            let order = if free { Order::Free } else { Order::Kept };
            link = link.with_jitter(Jitter { spread, shape, order }).unwrap();
        }
        if burst {
            link = link.with_loss_model(Loss::GilbertElliott(GilbertElliott {
                to_bad: a, to_good: b, loss_in_bad: c, loss_in_good: d,
            }));
        }
        // Without a loss there is nothing to mark, and nothing is printed.
        if marks && link.loss().is_lossy() {
            link = link.with_losses_marked();
        }
        if let Some(limit) = limit {
            link = link.with_limit(limit.try_into().unwrap());
        }
        if let Some((rate, burst)) = policer {
            let rate = BitRate::from_bits_per_second(rate);
            link = link.with_policer(Policer { rate, burst: ByteCount::new(burst) }).unwrap();
        }
        if discipline > 0 && rate.is_some() {
            let (min, max) = (ByteCount::new(queue / 3), ByteCount::new(queue / 2));
            let red = Red { min, max, probability: b, weight: c };
            let (target, interval) = (Span::from_ns(delay + 1), Span::from_ns(delay + 2));
            let codel = Codel { target, interval };
            let discipline =
                if discipline == 1 { Discipline::Red(red) } else { Discipline::Codel(codel) };
            link = link.with_discipline(discipline).unwrap_or(link);
        } else if let (Some(bytes), Some(_)) = (mark, rate) {
            let marking = link.with_marking_above(ByteCount::new(bytes));
            link = if marking.marks_by_queue() { marking } else { link };
        }
        if let (Some(gap), true) = (gap, delay > 0) {
            link = link.with_reorder(Reorder { probability: d, gap: gap.try_into().unwrap() });
        }
        link
    }
}

proptest! {
    #[test]
    fn a_printed_link_parses_back(link in any_link(), seed: Option<u64>) {
        let netem = Netem { link, seed };
        prop_assert_eq!(netem.to_string().parse(), Ok(netem));
    }

    #[test]
    fn no_text_panics(text in "[a-z0-9.% -]{0,80}|.*") {
        let _ = parse(&text);
    }

    #[test]
    fn no_words_panic(words in prop::collection::vec(
        prop::sample::select(vec![
            "delay", "loss", "gemodel", "rate", "reorder", "gap", "limit", "ecn", "distribution",
            "normal", "codel", "red", "policer", "1MB", "1ms", "5%", "100%", "1gbit", "10", "queue", "order", "kept", "1bdp", "-3",
        ]),
        0..12,
    )) {
        let _ = parse(&words.join(" "));
    }
}

//! The picture of a trace: rates, bytes in flight and RTT of each lane over time.

use super::TraceError;
use gateway::wan::link_trace::{TraceLane, TraceRecord};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// 1,200 x 900 points: width and height of the picture of a trace. The width fits a page.
const PICTURE_SIZE: (u32, u32) = (1200, 900);

/// A line of a panel: its name, and a value of each round.
type Line = (&'static str, fn(&TraceLane) -> f64);
/// The lines that a trace's picture draws of each lane in its panel on rates, in Mbit/s: name and
/// value. A round without a pace is drawn at 0.
const RATE_LINES: [Line; 3] = [
    ("round", |round| round.round_bits_per_second as f64 / 1e6),
    ("rate", |round| round.rate_bits_per_second as f64 / 1e6),
    ("pace", |round| round.pace_bits_per_second.unwrap_or(0) as f64 / 1e6),
];
/// The lines that a trace's picture draws of each lane in its panel on bytes in flight, in MB: name
/// and value at each round.
const FLIGHT_LINES: [Line; 2] = [
    ("window", |round| round.window_bytes as f64 / 1e6),
    ("in flight", |round| round.in_flight_bytes as f64 / 1e6),
];
/// The lines that a trace's picture draws of each lane in its panel on round-trip times, in
/// milliseconds: name and value at each round.
const RTT_LINES: [Line; 2] =
    [("RTT", |round| round.rtt_seconds * 1e3), ("min RTT", |round| round.min_rtt_seconds * 1e3)];

/// Draws a trace as SVG: three panels over time, with a line of each lane for each value, and a mark at
/// each change of a phase.
pub(crate) fn draw_trace(file: &Path, records: &[TraceRecord]) -> Result<(), TraceError> {
    draw_panels(file, records).map_err(|error| TraceError::Picture {
        path: file.display().to_string(),
        why: error.to_string(),
    })
}

/// Draws the panels, one below the other.
fn draw_panels(file: &Path, records: &[TraceRecord]) -> Result<(), Box<dyn Error>> {
    let mut lanes: BTreeMap<(&str, u16), Vec<&TraceLane>> = BTreeMap::new();
    let mut changes = Vec::new();
    for record in records {
        match record {
            TraceRecord::Lane(lane) => {
                lanes.entry((&lane.peer, lane.lane)).or_default().push(lane);
            }
            TraceRecord::Transition(change) => changes.push(change.at_seconds),
            _ => {}
        }
    }
    let root = SVGBackend::new(file, PICTURE_SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let panels: [(&str, &[Line]); 3] =
        [("Mbit/s", &RATE_LINES), ("MB", &FLIGHT_LINES), ("ms", &RTT_LINES)];
    for (area, (unit, lines)) in root.split_evenly((panels.len(), 1)).iter().zip(panels) {
        draw_panel(area, (unit, lines), &lanes, &changes)?;
    }
    root.present()?;
    Ok(())
}

/// Draws one panel: a curve of each lane for each of `lines`, with a legend. A vertical line marks
/// each change of a phase.
fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    (unit, lines): (&str, &[Line]),
    lanes: &BTreeMap<(&str, u16), Vec<&TraceLane>>,
    changes: &[f64],
) -> Result<(), Box<dyn Error>> {
    let rounds = || lanes.values().flatten();
    let values = rounds().flat_map(|round| lines.iter().map(|(_, value)| value(round)));
    let most = values.fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let times = || rounds().map(|round| round.at_seconds);
    let begin = times().reduce(f64::min).unwrap_or(0.0);
    let end = times().fold(begin + f64::from(f32::EPSILON), f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(60)
        .build_cartesian_2d(begin..end, 0f64..most)?;
    chart.configure_mesh().x_desc("seconds").y_desc(unit).draw()?;
    chart.draw_series(changes.iter().filter(|at| **at >= begin && **at <= end).map(|at| {
        PathElement::new(vec![(*at, 0.0), (*at, most)], BLACK.mix(0.15).stroke_width(1))
    }))?;
    let series = lanes.iter().flat_map(|lane| lines.iter().map(move |line| (lane, line)));
    for (index, (((peer, lane), rounds), (name, value))) in series.enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let points = rounds.iter().map(|round| (round.at_seconds, value(round)));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(1)))?
            .label(format!("{peer} lane {lane}: {name}"))
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2))
            });
    }
    if !lanes.is_empty() {
        chart.configure_series_labels().border_style(BLACK).draw()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::lane_round_record;
    use super::*;

    #[test]
    fn a_drawing_names_lane_and_values() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace.svg");
        let records: Vec<_> =
            (1..5).map(|at| lane_round_record(f64::from(at), "cruise", 1_000_000)).collect();
        for records in [&records[..], &records[..1], &[]] {
            draw_trace(&file, records).expect("drawn");
            let svg = std::fs::read_to_string(&file).expect("written");
            assert_eq!(svg.contains("west-0 lane 0: in flight"), !records.is_empty());
        }
        assert!(draw_trace(&folder.path().join("none/trace.svg"), &records).is_err());
    }
}

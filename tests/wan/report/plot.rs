//! The plot of efficiency (eta) against RTT, with a line for each contender.

use crate::measured::Measured;
use crate::row::COMMON;
use hier_collectives::plan::Operation;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// The loss at which the contenders are compared, and the rate of the rows that count.
const LOSSES: [&str; 2] = ["0 %", "0.1 %"];
/// 1 Gbit/s: the rate of the rows shown.
const RATE: u64 = 1_000_000_000;

/// Points by contender: RTT in ms, eta.
type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// Writes an SVG with a panel for each loss.
pub fn draw(file: &Path, measured: &Measured) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(file, (1200, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, loss) in root.split_evenly((1, 2)).iter().zip(LOSSES) {
        let lines = lines(measured, loss);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("64 MiB, 1 Gbit/s, loss {loss}"), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(44)
            .build_cartesian_2d((1f64..300f64).log_scale(), 0f64..1f64)?;
        chart.configure_mesh().x_desc("RTT, ms").y_desc("eta").draw()?;
        for (index, (who, points)) in lines.into_iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let line = LineSeries::new(points, color.stroke_width(2)).point_size(3);
            chart.draw_series(line)?.label(who).legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2))
            });
        }
        chart.configure_series_labels().border_style(BLACK).draw()?;
    }
    root.present()?;
    Ok(())
}

fn lines(measured: &Measured, loss: &str) -> Lines {
    let mut lines = Lines::new();
    for (row, cell) in &measured.cells {
        if row.rate.bits_per_second() == RATE
            && row.loss.to_string() == loss
            && cell.bytes == COMMON
            && cell.operation == Operation::AllReduce.name()
            && cell.void.is_none()
            && let Some(eta) = cell.eta
        {
            let who = format!("{} ({})", cell.who, cell.arm);
            lines.entry(who).or_default().push((row.rtt.as_secs_f64() * 1e3, eta));
        }
    }
    lines
}

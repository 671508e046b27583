//! The picture of all rows: a bar for the cost of each, with its spread.

use super::svg::{END, begin_picture, escape};
use crate::figure::Figure;
use crate::measured::{Cell, Measured};
use crate::row::Contender;
use std::fmt::Write as _;

/// 820 pixels: width of the picture.
const WIDTH_PX: f64 = 820.0;
/// 380 pixels from the left to the beginning of the bars: room for labels.
const LABELS_PX: f64 = 380.0;
/// 340 pixels: length of the longest bar, which leaves room for its figure.
const BARS_PX: f64 = 340.0;
/// 18 pixels: height of a row.
const ROW_PX: f64 = 18.0;
/// 30 pixels: height of the title.
const TITLE_PX: f64 = 30.0;

/// Draws a bar for the processor time of each row that was measured.
pub fn draw(measured: &Measured) -> String {
    let bar = |cell: &Cell| cell.cpu_per_gb().map(|figure| (cell.row, figure));
    let bars: Vec<_> = measured.cells.iter().filter_map(bar).collect();
    let most = bars.iter().map(|(_, figure)| figure.most).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = begin_picture(WIDTH_PX, TITLE_PX + ROW_PX * bars.len() as f64 + 10.0);
    writeln!(
        svg,
        "<text x=\"{LABELS_PX}\" y=\"20\">CPU-s/GB of the buffer: median, least and most</text>"
    )
    .expect("a string takes all");
    for (index, (row, figure)) in bars.iter().enumerate() {
        let top = TITLE_PX + ROW_PX * index as f64;
        let x = |value: f64| LABELS_PX + BARS_PX * value / most;
        let Figure { median, least, most, .. } = *figure;
        let fill = if row.who == Contender::Landbridge { "#c40" } else { "#789" };
        writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LABELS_PX}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{fill}\"/>\n\
             <path d=\"M{:.1} {:.1} H{:.1}\" stroke=\"#222\" stroke-width=\"2\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{median:.2}</text>",
            LABELS_PX - 8.0,
            top + 12.0,
            escape(&row.to_string()),
            top + 2.0,
            x(median) - LABELS_PX,
            x(least),
            top + 8.0,
            x(most),
            x(most) + 8.0,
            top + 12.0,
        )
        .expect("a string takes all");
    }
    svg + END
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Sample;
    use crate::row::{FULL, GIGABIT, Row};

    #[test]
    fn every_measured_row_has_a_bar() {
        let sample = Sample { gigabytes: 1.0, cpu_seconds: 4.0, ..Sample::default() };
        let cell = Cell { samples: vec![sample], ..Cell::new(Row::plain(FULL)) };
        let cells = vec![cell, Cell::new(Row::plain(GIGABIT))];
        let svg = draw(&Measured { cells, ..Measured::default() });
        assert_eq!(svg.matches("height=\"12\"").count(), 1);
        assert!(svg.contains(">4.00</text>") && svg.ends_with("</svg>\n"));
    }
}

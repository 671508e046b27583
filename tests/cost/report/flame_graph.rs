//! Flame graphs: a box for each function, as wide as the time that it and its callees took.

use super::svg::{END, begin_picture, escape};
use crate::measure::profile::Stacks;
use crate::row::Contender;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// 1,200 pixels: width of the picture.
const WIDTH_PX: f64 = 1_200.0;
/// 16 pixels: height of a box.
const BOX_PX: f64 = 16.0;
/// 30 pixels: height of the title.
const TITLE_PX: f64 = 30.0;
/// 2 pixels: narrower boxes are left out, and those above them.
const LEAST_PX: f64 = 2.0;
/// 7 pixels: about the width of a letter.
const LETTER_PX: f64 = 7.0;

/// A function in its place among callers.
#[derive(Debug, Default)]
struct Frame {
    /// Samples of the function and its callees.
    samples: u64,
    /// Callees by name.
    callees: BTreeMap<String, Frame>,
}

impl Frame {
    /// Returns the tree of all stacks.
    fn of(stacks: &Stacks) -> Self {
        let mut root = Self::default();
        for (stack, samples) in stacks {
            root.samples += samples;
            let mut frame = &mut root;
            for name in stack {
                frame = frame.callees.entry(name.clone()).or_default();
                frame.samples += samples;
            }
        }
        root
    }

    /// Returns the number of boxes that stand on each other where the stack is deepest, with boxes
    /// of at least `least` samples.
    fn height(&self, least: f64) -> usize {
        let wide = self.callees.values().filter(|callee| callee.samples as f64 >= least);
        wide.map(|callee| 1 + callee.height(least)).max().unwrap_or(0)
    }
}

/// The scale of a picture.
struct Scale {
    /// Width of one sample in pixels.
    sample_px: f64,
    /// All samples.
    samples: u64,
    /// Lower edge of the lowest boxes in pixels.
    bottom_px: f64,
}

/// Returns the name of the file with the flame graph of a contender.
pub fn file_name(who: Contender) -> String {
    let name = match who {
        Contender::Landbridge => "landbridge",
        Contender::Before => "before",
        Contender::Quinn => "quinn",
        Contender::Tcp => "tcp",
        Contender::Tls => "tls",
        Contender::Gloo => "gloo",
    };
    format!("flame-{name}.svg")
}

/// Draws a flame graph, threads at the bottom.
pub fn draw(title: &str, stacks: &Stacks) -> String {
    let root = Frame::of(stacks);
    let sample_px = WIDTH_PX / root.samples.max(1) as f64;
    let height = TITLE_PX + BOX_PX * root.height(LEAST_PX / sample_px) as f64;
    let scale = Scale { sample_px, samples: root.samples.max(1), bottom_px: height };
    let mut svg = begin_picture(WIDTH_PX, height);
    writeln!(svg, "<text x=\"8\" y=\"20\">{}: {} samples</text>", escape(title), root.samples)
        .expect("a string takes all");
    draw_callees(&mut svg, &root, 0.0, 0, &scale);
    svg + END
}

/// Draws the callees of a function whose left edge is at `left` pixels, `depth` boxes from below.
fn draw_callees(svg: &mut String, frame: &Frame, left: f64, depth: usize, scale: &Scale) {
    let mut x = left;
    for (name, callee) in &frame.callees {
        let width = callee.samples as f64 * scale.sample_px;
        if width >= LEAST_PX {
            let y = scale.bottom_px - BOX_PX * (depth + 1) as f64;
            let percent = 100.0 * callee.samples as f64 / scale.samples as f64;
            let hue = 10 + name.bytes().map(u32::from).sum::<u32>() % 45;
            let letters = ((width - 4.0) / LETTER_PX) as usize;
            let shown: String = name.chars().take(letters).collect();
            writeln!(
                svg,
                "<g><title>{}: {percent:.1} %</title><rect x=\"{x:.1}\" y=\"{y:.1}\" \
                 width=\"{width:.1}\" height=\"{:.0}\" fill=\"hsl({hue},80%,65%)\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
                escape(name),
                BOX_PX - 1.0,
                x + 2.0,
                y + 12.0,
                escape(&shown),
            )
            .expect("a string takes all");
            draw_callees(svg, callee, x, depth + 1, scale);
        }
        x += width;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(of: &[(&[&str], u64)]) -> Stacks {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        of.iter().map(|(stack, samples)| (names(stack), *samples)).collect()
    }

    #[test]
    fn a_box_is_as_wide_as_its_callees_together() {
        let stacks =
            stacks(&[(&["lane", "poll", "send"], 30), (&["lane", "poll"], 20), (&["main"], 50)]);
        let root = Frame::of(&stacks);
        let lane = &root.callees["lane"];
        assert_eq!((root.samples, lane.samples, lane.callees["poll"].samples), (100, 50, 50));
        assert_eq!(root.height(1.0), 3);
        let svg = draw("landbridge", &stacks);
        assert!(svg.contains("<title>send: 30.0 %</title>"), "{svg}");
    }

    #[test]
    fn names_with_brackets_stay_names_in_a_picture() {
        let svg = draw("a & b", &stacks(&[(&["Vec<u8>::push"], 9)]));
        assert!(svg.contains("Vec&lt;u8&gt;::push: 100.0 %") && !svg.contains("<u8>"));
        assert!(svg.contains("a &amp; b: 9 samples"));
    }

    #[test]
    fn narrow_boxes_are_left_out() {
        let svg = draw("x", &stacks(&[(&["wide"], 10_000), (&["narrow", "above"], 1)]));
        assert!(svg.contains("wide") && !svg.contains("narrow") && !svg.contains("above"));
    }
}

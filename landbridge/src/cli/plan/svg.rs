//! A plan as a picture: regions on a circle, links as wide as they are busy, the largest trees.

use super::plan_report::{CARRIES_BOTH, PlanReport, TreeLoad};
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use std::cmp::Reverse;
use std::f64::consts::TAU;
use std::fmt::Write;
use units::{ByteCount, rounded_decimal_percent};

/// Draws the plan of an operation as SVG: regions and links above, and below them the
/// [`TREES_DRAWN_MAX`] largest trees. Names need no escaping: they consist of letters, digits and
/// hyphens.
pub(super) fn draw_plan_svg(fabric: &Fabric, report: &PlanReport) -> String {
    let mut trees = svg_trees(report);
    // Trees apart for partials and results each carry the whole buffer together.
    let total = match report.has_owner_trees {
        true => trees.iter().map(|tree| tree.bytes).sum(),
        false => report.size_bytes,
    };
    trees.truncate(TREES_DRAWN_MAX);
    let rows = trees.len().div_ceil(TREES_PER_ROW);
    let height = PICTURE_SIDE_PX + rows as f64 * TREE_ROW_HEIGHT_PX + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PICTURE_SIDE_PX} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let circle = SvgRegionCircle {
        regions: fabric.regions().len(),
        middle: (PICTURE_SIDE_PX / 2.0, PICTURE_SIDE_PX / 2.0),
        radius: 0.36 * PICTURE_SIDE_PX,
    };
    draw_svg_links(&mut svg, fabric, report, &circle);
    draw_svg_regions(&mut svg, fabric, report, &circle);
    for (index, tree) in trees.iter().enumerate() {
        let (row, column) = (index / TREES_PER_ROW, index % TREES_PER_ROW);
        let middle = (
            (column as f64 + 0.5) * PICTURE_SIDE_PX / TREES_PER_ROW as f64,
            PICTURE_SIDE_PX + (row as f64 + 0.5) * TREE_ROW_HEIGHT_PX,
        );
        let circle = SvgRegionCircle { middle, radius: 0.34 * TREE_ROW_HEIGHT_PX, ..circle };
        draw_svg_tree(&mut svg, fabric, tree, &circle);
        let (x, y) = (circle.middle.0, circle.middle.1 + 0.48 * TREE_ROW_HEIGHT_PX);
        let label = svg_tree_label(report, tree, total);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"11\">{label}</text>")
            .expect("a string takes it");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the trees to draw, the largest first: those that carry data, and the express tree. Parts
/// of one gateway's own tree are one tree.
fn svg_trees(report: &PlanReport) -> Vec<TreeLoad> {
    let mut trees: Vec<TreeLoad> = Vec::new();
    for part in report.trees.iter().filter(|tree| tree.bytes > 0 || tree.express) {
        let same = trees.iter_mut().find(|tree| report.has_owner_trees && tree.crown == part.crown);
        match same {
            Some(tree) => {
                tree.bytes += part.bytes;
                tree.parents.extend(part.parents.clone());
            }
            None => trees.push(part.clone()),
        }
    }
    trees.sort_by_key(|tree| Reverse(tree.bytes));
    trees
}

/// Returns the text below a tree: its fraction of the `total` bytes, and its direction if it has one
/// alone. For the express tree it is the largest buffer that takes it.
fn svg_tree_label(report: &PlanReport, tree: &TreeLoad, total: u64) -> String {
    let part = || rounded_decimal_percent(tree.bytes as f64 / total.max(1) as f64);
    match (report.express_bytes.filter(|_| tree.express), tree.carries) {
        (Some(most), _) => format!("up to {}", ByteCount::new(most).rounded()),
        (None, CARRIES_BOTH) => part(),
        (None, carries) => format!("{}, {carries}", part()),
    }
}

/// The circle on which regions are drawn.
#[derive(Clone, Copy)]
struct SvgRegionCircle {
    regions: usize,
    middle: (f64, f64),
    radius: f64,
}

impl SvgRegionCircle {
    /// Returns x and y of a region in pixels, at `radius` from the middle. Region 0 is at the top,
    /// and the others follow clockwise.
    fn position_at(&self, region: usize, radius: f64) -> (f64, f64) {
        let angle = TAU * (region as f64 / self.regions as f64 - 0.25);
        (self.middle.0 + radius * angle.cos(), self.middle.1 + radius * angle.sin())
    }
    /// Returns x and y of a region on the circle, in pixels.
    fn position(&self, region: usize) -> (f64, f64) {
        self.position_at(region, self.radius)
    }
}

/// Draws each direction of a link as an arc bent to its own side. The larger the fraction of the
/// predicted time in which the direction is busy, the wider and redder the arc.
fn draw_svg_links(
    svg: &mut String,
    fabric: &Fabric,
    report: &PlanReport,
    circle: &SvgRegionCircle,
) {
    let number = |name: &str| fabric.regions().iter().position(|region| region.name == name);
    let labelled = circle.regions <= LABELLED_REGIONS_MAX;
    for link in &report.link_bytes {
        let (Some(from), Some(to)) = (number(&link.from), number(&link.to)) else { continue };
        let ((x1, y1), (x2, y2)) = (circle.position(from), circle.position(to));
        let busy = (link.seconds / report.predicted_seconds.max(f64::MIN_POSITIVE)).min(1.0);
        let (bend_x, bend_y) =
            ((x1 + x2) / 2.0 - 0.12 * (y2 - y1), (y1 + y2) / 2.0 + 0.12 * (x2 - x1));
        let width = 0.6 + 7.0 * busy;
        let hue = 210.0 - 200.0 * busy;
        let size = ByteCount::new(link.bytes).rounded();
        writeln!(
            svg,
            "<path d=\"M{x1:.1} {y1:.1} Q{bend_x:.1} {bend_y:.1} {x2:.1} {y2:.1}\" fill=\"none\" \
             stroke=\"hsl({hue:.0},70%,50%)\" stroke-width=\"{width:.2}\" opacity=\"0.8\">\
             <title>{} to {}: {size}, busy {}</title></path>",
            link.from,
            link.to,
            rounded_decimal_percent(busy)
        )
        .expect("a string takes it");
        if labelled && link.bytes > 0 {
            // A third of the way, so that labels of crossing links do not overlap.
            let at = |a: f64, bend: f64, b: f64| 0.45 * a + 0.44 * bend + 0.11 * b;
            let (x, y) = (at(x1, bend_x, x2), at(y1, bend_y, y2));
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"11\">{size}</text>")
                .expect("a string takes it");
        }
    }
}

/// Draws each region as a disc with a label. The disc's radius grows with the square root of the
/// share of the buffer that the region's gateways own.
fn draw_svg_regions(
    svg: &mut String,
    fabric: &Fabric,
    report: &PlanReport,
    circle: &SvgRegionCircle,
) {
    for (index, region) in fabric.regions().iter().enumerate() {
        let owned: f64 = region
            .gateways
            .clone()
            .filter_map(|id| report.shares.get(&fabric.gateway(GatewayId(id)).name))
            .sum();
        let (x, y) = circle.position(index);
        let radius = 7.0 + 18.0 * owned.sqrt();
        let (text_x, text_y) = circle.position_at(index, circle.radius + 0.09 * PICTURE_SIDE_PX);
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"#234\"/>\n\
             <text x=\"{text_x:.1}\" y=\"{text_y:.1}\">{} {}</text>",
            region.name,
            rounded_decimal_percent(owned)
        )
        .expect("a string takes it");
    }
}

/// Draws all regions and the edges of one tree that cross regions. Regions of the root set are
/// filled.
fn draw_svg_tree(svg: &mut String, fabric: &Fabric, tree: &TreeLoad, circle: &SvgRegionCircle) {
    let region = |name: &String| {
        fabric.gateway_named(name).map(|id| usize::from(fabric.gateway(id).region.0))
    };
    let between_roots =
        tree.crown.iter().flat_map(|one| tree.crown.iter().map(move |other| (one, other)));
    let edges = tree.parents.iter().chain(between_roots.filter(|(one, other)| one < other));
    for (one, other) in edges {
        let (Some(one), Some(other)) = (region(one), region(other)) else { continue };
        if one == other {
            continue;
        }
        let ((x1, y1), (x2, y2)) = (circle.position(one), circle.position(other));
        writeln!(
            svg,
            "<path d=\"M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}\" stroke=\"#678\" stroke-width=\"1.5\"/>"
        )
        .expect("a string takes it");
    }
    for index in 0..circle.regions {
        let (x, y) = circle.position(index);
        let is_root = tree.crown.iter().any(|name| region(name) == Some(index));
        let fill = if is_root { "#c40" } else { "white" };
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"#234\"/>"
        )
        .expect("a string takes it");
    }
}

/// 720 pixels: the width of the picture of a plan, and the height of its upper part with regions
/// and links. It is chosen.
const PICTURE_SIDE_PX: f64 = 720.0;
/// 150 pixels: the height of each row of trees in the picture of a plan, below regions and links.
/// It is chosen.
const TREE_ROW_HEIGHT_PX: f64 = 150.0;
/// 5 trees: as many stand side by side in the picture of a plan; more trees begin another row.
const TREES_PER_ROW: usize = 5;
/// 20 trees: the most in the picture of a plan. Of more trees those with the largest shares are
/// drawn, and the others left out. The number is a choice of layout, not measured.
const TREES_DRAWN_MAX: usize = 20;
/// 10 regions: the most in a picture of a plan whose links have labels with their bytes. With more
/// regions the labels are left out, since they would cover one another.
const LABELLED_REGIONS_MAX: usize = 10;

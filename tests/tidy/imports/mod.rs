//! No file may need a file that needs it, directly or through others.
//!
//! An import is an edge from the file that imports to the file that defines the item: re-exports are
//! followed, and are no edges themselves. Test code is not counted.

mod graph;
mod python;
mod rust;

use graph::circles;
use std::collections::BTreeMap;

#[test]
fn no_crate_has_a_circle_of_imports() {
    let mut findings = Vec::new();
    let mut edges = 0;
    for krate in rust::crates() {
        let imports = rust::imports(&krate);
        edges += imports.values().map(BTreeMap::len).sum::<usize>();
        findings.extend(circles(&imports));
    }
    assert!(edges > 300, "only {edges} imports found");
    crate::sources::assert_none(findings);
}

#[test]
fn the_python_package_has_no_circle_of_imports() {
    let imports = python::imports();
    let edges = imports.values().map(BTreeMap::len).sum::<usize>();
    assert!(edges > 20, "only {edges} imports found");
    crate::sources::assert_none(circles(&imports));
}

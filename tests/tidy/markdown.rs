//! As much of Markdown as the checks need.

/// The lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of inline links and images, with their lines. Code spans are left out.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let outside = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
        for after in outside.split("](").skip(1) {
            if let Some((target, _)) = after.split_once(')') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The texts of the headings.
pub(crate) fn headings(text: &str) -> impl Iterator<Item = &str> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| line.trim_start_matches('#').trim())
}

/// A heading's anchor, as forges make it: lower case, hyphens for spaces, no punctuation.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_and_anchors_are_found_where_they_are() {
    let text = "# One: the `wire`, v1\n[a](b.md#c) and ![d](e.png) `[f](g)`\n```\n[h](i)\n```\n";
    let targets: Vec<String> = links(text).into_iter().map(|(_, target)| target).collect();
    assert_eq!(targets, ["b.md#c", "e.png"]);
    assert_eq!(headings(text).map(anchor).collect::<Vec<_>>(), ["one-the-wire-v1"]);
}

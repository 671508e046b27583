//! Plain tables.

/// Returns a table as text: columns two spaces apart, each as wide as its widest cell, the header
/// in capitals.
pub(crate) fn render_table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    let header = header.map(str::to_uppercase);
    let rows: Vec<[String; COLUMNS]> =
        rows.iter().map(|row| row.each_ref().map(|cell| cell_on_one_line(cell))).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns a table cell with spaces in place of control characters: a cell may quote a text of a
/// peer.
fn cell_on_one_line(cell: &str) -> String {
    cell.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::render_table;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1\n3".to_owned()], ["long".to_owned(), "2".to_owned()]];
        assert_eq!(render_table(["x", "y"], &rows), "X     Y\na     1 3\nlong  2\n");
    }
}

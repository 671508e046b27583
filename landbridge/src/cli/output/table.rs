//! Tables and lists of fields that fit the terminal, by comfy-table.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use stdio::{output_columns, wrap_words};

/// Returns a table as text: columns two spaces apart, the header in capitals. Long cells are
/// wrapped where the table would be wider than the terminal. A terminal too narrow for columns gets
/// each row as a list.
pub(crate) fn render_table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    render_table_within(output_columns(), header, rows)
}

/// 24 characters: no word of a table's cells up to this length is broken; longer words, such as
/// paths, may be. A terminal too narrow for that gets each row as a list. The number is chosen.
const WORD_CHARS_MIN: usize = 24;

/// Returns a table as text that is at most `columns` wide. Where the columns would break short
/// words, each row is a list of fields instead.
fn render_table_within<const COLUMNS: usize>(
    columns: u16,
    header: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    let longest_word = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str());
        let words = cells.chain([header[column]]).flat_map(str::split_whitespace);
        words.map(|word| word.chars().count()).max().unwrap_or(0)
    };
    let longest: [usize; COLUMNS] = std::array::from_fn(longest_word);
    let room = usize::from(columns).saturating_sub(2 * COLUMNS.saturating_sub(1));
    // Words as long as there is room for in all columns.
    let widths = |most: usize| longest.map(|word| word.min(most));
    let fits = |most: &usize| widths(*most).iter().sum::<usize>() <= room;
    let longest_of_all = longest.into_iter().max().unwrap_or(0);
    let least = WORD_CHARS_MIN.min(longest_of_all);
    let Some(most) = (least..=longest_of_all).rev().find(fits) else {
        let list = |row: &[String; COLUMNS]| {
            let fields: Vec<[String; 2]> = std::iter::zip(header, row)
                .map(|(name, cell)| [name.to_uppercase(), cell.clone()])
                .collect();
            render_field_table_within(columns, &fields)
        };
        return rows.iter().map(list).collect::<Vec<_>>().join("\n");
    };
    let mut table = plain_table(rows, columns);
    table.set_header(header.map(str::to_uppercase));
    let chars = |cell: &str| cell.chars().count();
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| chars(&row[column]));
        cells.chain([chars(header[column])]).max().unwrap_or(0)
    };
    if (0..COLUMNS).map(widest).sum::<usize>() > room {
        for (index, column) in table.column_iter_mut().enumerate() {
            // A width counts the spaces after the column.
            let spaces = if index + 1 < COLUMNS { 2 } else { 0 };
            let least = u16::try_from(widths(most)[index] + spaces).unwrap_or(columns);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    render_spaced_table(&mut table)
}

/// Returns a list of names and values as text, one field to a line. Long values are wrapped.
pub(crate) fn render_field_table(fields: &[[String; 2]]) -> String {
    render_field_table_within(output_columns(), fields)
}

/// Returns a list of names and values as text that is at most `columns` wide, unless a word is
/// longer.
fn render_field_table_within(columns: u16, fields: &[[String; 2]]) -> String {
    let names = fields.iter().map(|[name, _]| name.chars().count()).max().unwrap_or(0);
    let line = |[name, value]: &[String; 2]| {
        let value = table_cell_on_one_line(value);
        wrap_words(format!("{name:names$}  {value}").trim_end(), columns) + "\n"
    };
    fields.iter().map(line).collect()
}

/// Makes a table without lines that is at most `columns` wide.
fn plain_table<const COLUMNS: usize>(rows: &[[String; COLUMNS]], columns: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns);
    table.add_rows(rows.iter().map(|row| row.each_ref().map(|cell| table_cell_on_one_line(cell))));
    table
}

/// Returns a table as text that ends in a newline, with two spaces between columns and none after
/// the last.
fn render_spaced_table(table: &mut Table) -> String {
    let last = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if index < last { 2 } else { 0 }));
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Returns a table cell with spaces in place of control characters: a cell may quote a text of a
/// peer.
fn table_cell_on_one_line(cell: &str) -> String {
    cell.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1\n3".to_owned()], ["long".to_owned(), "2".to_owned()]];
        assert_eq!(render_table_within(80, ["x", "y"], &rows), "X     Y\na     1 3\nlong  2\n");
    }

    #[test]
    fn long_cells_are_wrapped_within_the_width() {
        let summary = "3 regions, 5 gateways, 14 ranks ".repeat(8);
        let rows = [["configs/fabric.toml".to_owned(), "fabric".to_owned(), summary]];
        let text = render_table_within(80, ["file", "kind", "summary"], &rows);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() > 3 && text.matches("14 ranks").count() > 5, "{text}");
    }

    #[test]
    fn tables_of_any_width_break_no_short_word() {
        let header = ["peer", "region", "lanes", "rtt", "sent", "state"];
        let row = ["west-0", "west", "1 of 4", "80.2 ms", "13.4 GiB", "1 of 4 ports answer"];
        let rows = [row.map(str::to_owned), row.map(str::to_owned)];
        for columns in [20, 24, 40, 45, 60, 80, 200, u16::MAX] {
            let text = render_table_within(columns, header, &rows);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns.into()), "{columns}:\n{text}");
            for word in row.iter().flat_map(|cell| cell.split(' ')) {
                assert!(text.split_whitespace().any(|found| found == word), "{word}:\n{text}");
            }
            assert!(text.contains("PEER") && text.contains("STATE"), "{text}");
        }
    }

    #[test]
    fn words_of_a_narrow_table_are_broken_last() {
        let reason = "activations and their gradients cross once, while other stages compute";
        let row = ["tensor", "1635.78 PB", "NO", reason].map(str::to_owned);
        for columns in 37..=80 {
            let text = render_table_within(
                columns,
                ["axis", "bytes", "may cross WAN", "reason"],
                std::slice::from_ref(&row),
            );
            assert!(text.contains("activations"), "{columns}:\n{text}");
        }
    }

    #[test]
    fn long_paths_stay_whole_in_lists_and_wide_tables() {
        let path = "/etc/landbridge/keys/of/the/second/deployment/east-0.pem";
        let row = ["ok", "certificate", path, "fits its key"].map(str::to_owned);
        for columns in [20, 40, 100, 200] {
            let text = render_table_within(
                columns,
                ["verdict", "check", "subject", "found"],
                std::slice::from_ref(&row),
            );
            assert!(text.contains(path), "{columns}:\n{text}");
        }
    }

    #[test]
    fn long_fields_are_wrapped_below_their_value() {
        let fields = [["reason".to_owned(), "two regions ".repeat(12)]];
        let text = render_field_table_within(80, &fields);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("reason  two regions"), "{text}");
        assert!(lines[1].starts_with("        two regions"), "{text}");
    }
}

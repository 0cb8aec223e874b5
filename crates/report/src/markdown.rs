//! The report as GitHub-flavoured Markdown, with its figures as separate SVG files.

use crate::document::{Answer, Cell, Document, Element, Figure, Inline, Marked, Table, Texts};
use layerscope_figures::{Canvas, Colours, Theme};
use layerscope_figures::{visible, visible_line};
use std::fmt::Write;

/// Size of a figure.
const SIZE: [f64; 2] = [820.0, 340.0];

/// The document as Markdown, which links to figures in `folder`, and the figures by file name.
pub(crate) fn markdown(document: &Document, folder: &str) -> (String, Vec<(String, String)>) {
    let mut writer = Writer { text: String::new(), figures: vec![], folder };
    let _ = writeln!(writer.text, "# {}\n\n{}\n", line(&document.title), line(&document.subtitle));
    for section in &document.sections {
        let _ = writeln!(writer.text, "## {}\n", line(&section.title));
        for block in &section.blocks {
            writer.block(block);
        }
    }
    (writer.text, writer.figures)
}

struct Writer<'a> {
    text: String,
    figures: Vec<(String, String)>,
    folder: &'a str,
}

impl Writer<'_> {
    fn block(&mut self, block: &Element) {
        match block {
            Element::Heading(text) => self.line(format_args!("### {}\n", line(text))),
            Element::Paragraph(words) => self.line(format_args!("{}\n", inline(words))),
            Element::List(items) => self.list(items),
            Element::Folded { title, items } => {
                self.line(format_args!("**{title}**\n"));
                self.list(items);
            }
            Element::Answer(answer) => self.answer(answer),
            Element::Table(table) => {
                self.line(format_args!("*{}*\n", line(&table.caption)));
                self.table(table);
            }
            Element::Figure(figure) => self.figure(figure),
            Element::Texts(texts) => self.texts(texts),
            Element::Code(code) => self.line(format_args!("{}\n", fenced(code))),
        }
    }

    fn line(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{line}");
    }

    fn list(&mut self, items: &[Vec<Inline>]) {
        for item in items {
            self.line(format_args!("- {}", inline(item)));
        }
        self.line("");
    }

    fn answer(&mut self, answer: &Answer) {
        let policy =
            answer.policy.as_ref().map_or(String::new(), |policy| format!(", policy {}", code(policy)));
        self.line(format_args!("> **{}** ({}{policy})\n", line(&answer.headline), code(&answer.run)));
        self.line("| what | figure | |\n|---|---:|---|");
        for fact in &answer.facts {
            self.line(format_args!(
                "| {} | {} {} | {} |",
                fact.name,
                cell(&fact.cell),
                fact.unit,
                line(&fact.note)
            ));
        }
        self.line("");
    }

    fn table(&mut self, table: &Table) {
        let header = table.columns.iter().map(|column| match column.unit.as_str() {
            "" => line(&column.name),
            unit => format!("{} ({})", line(&column.name), line(unit)),
        });
        self.row(header);
        let numeric = (0..table.columns.len()).map(|column| table.is_numeric(column));
        self.row(numeric.map(|numeric| if numeric { "---:" } else { "---" }.to_owned()));
        for row in &table.rows {
            self.row(row.iter().map(cell));
        }
        self.line("");
    }

    fn row(&mut self, cells: impl Iterator<Item = String>) {
        let cells: Vec<String> = cells.collect();
        self.line(format_args!("| {} |", cells.join(" | ")));
    }

    fn figure(&mut self, figure: &Figure) {
        let size = figure.size(SIZE, SIZE);
        let colours = Colours::Of(Theme::Light);
        let svg = figure.to_svg(&Canvas { size, colours, titled: true, id: &figure.id });
        let name = format!("{}.svg", figure.id);
        let title = line(figure.title());
        let (folder, description) = (self.folder, line(figure.description()));
        self.line(format_args!("![{title}]({folder}/{name})\n\n*{description}*\n"));
        self.line(format_args!("<details><summary>Data: {}</summary>\n", line(&figure.table.caption)));
        self.table(&figure.table);
        self.line("</details>\n");
        self.figures.push((name, svg));
    }

    fn texts(&mut self, texts: &Texts) {
        self.line(format_args!(
            "<details><summary>The prompt</summary>\n\n{}\n\n</details>\n",
            fenced(&texts.prompt)
        ));
        for (name, tokens) in &texts.sides {
            let parts = match texts.first_difference {
                Some(step) => format!(", with ⟦ ⟧ around token {step}"),
                None => String::new(),
            };
            let text = texts.apart(tokens);
            let marked = match text.marked {
                Marked::Nothing => String::new(),
                Marked::Token(token) => format!("⟦{token}⟧"),
                Marked::End => "⟦⟧".into(),
            };
            let text = format!("{}{marked}{}", text.before, text.after);
            self.line(format_args!("{}{parts}:\n\n{}\n", line(name), fenced(&text)));
        }
    }
}

fn inline(words: &[Inline]) -> String {
    let word = |word: &Inline| match word {
        Inline::Plain(text) => line(text),
        // Markdown ignores `**` next to spaces.
        Inline::Strong(text) => {
            let trimmed = text.trim();
            let space = if text.ends_with(' ') { " " } else { "" };
            format!("**{}**{space}", line(trimmed))
        }
        Inline::Foreign(text) => code(text),
        Inline::Link { text, url } => format!("[{}]({url})", line(text)),
    };
    words.iter().map(word).collect()
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Foreign(text) if text.is_empty() => String::new(),
        Cell::Foreign(text) => code(text),
        other => line(&other.shown()),
    }
}

/// Text in one line, with Markdown and HTML escaped.
fn line(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in visible_line(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '$' | '!' => {
                escaped.push('\\');
                escaped.push(character);
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// Text as a code span. `|` is escaped, because it would end a table cell.
fn code(text: &str) -> String {
    let text = visible_line(text).replace('|', "\\|");
    let fence = "`".repeat(longest_run(&text) + 1);
    // Spaces separate ticks at the ends from the fence; Markdown strips one from each end.
    let space =
        if text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']) || text.is_empty() { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

fn fenced(text: &str) -> String {
    let text = visible(text);
    let fence = "`".repeat(longest_run(&text).max(2) + 1);
    format!("{fence}text\n{}\n{fence}", text.trim_end_matches('\n'))
}

/// Longest sequence of ticks.
fn longest_run(text: &str) -> usize {
    text.split(|character| character != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_foreign_is_read_as_markdown() {
        assert_eq!(line("a*b_c|<d>\n"), "a\\*b\\_c\\|&lt;d&gt;⏎");
        assert_eq!(code("a``b"), "```a``b```");
        assert_eq!(code("`"), "`` ` ``");
        assert_eq!(fenced("x\n````\n"), "`````text\nx\n````\n`````");
    }
}

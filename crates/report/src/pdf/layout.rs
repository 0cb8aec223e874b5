//! The document as input files of the template: `document.json` and an SVG per figure.

use super::characters::Characters;
use crate::document::{Column, Document, Element, Figure, Inline, Marked, Section, Table, Texts};
use layerscope_engine::{Error, Result};
use layerscope_figures::{Canvas, Colours, FIGURE_FONTS, Theme};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Size of a half-width and of a full-width figure, CSS pixels; their type is about eight points on paper.
const NARROW: [f64; 2] = [400.0, 250.0];
const WIDE: [f64; 2] = [700.0, 290.0];
/// Longest word that always fits into a line.
const LONGEST_WORD: usize = 60;
/// Rows of a table; typst takes some 15 kB of memory for each cell, a hundred times what the run folder does.
const MOST_ROWS: usize = 200;

/// The files by path.
pub(super) fn files(document: &Document, characters: &Characters<'_>) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut layout = Layout { characters, files: BTreeMap::new(), appendix: vec![] };
    let sections: Vec<Value> = document.sections.iter().map(|section| layout.section(section)).collect();
    let data = json!({
        "title": layout.text(&document.title),
        "subtitle": layout.text(&document.subtitle),
        "sections": sections,
        "appendix": layout.appendix,
    });
    let bytes = serde_json::to_vec(&data)
        .map_err(|error| Error::failure(format!("cannot lay out the PDF: {error}")))?;
    layout.files.insert("document.json".into(), bytes);
    Ok(layout.files)
}

struct Layout<'a> {
    characters: &'a Characters<'a>,
    files: BTreeMap<String, Vec<u8>>,
    /// The tables of figures.
    appendix: Vec<Value>,
}

impl Layout<'_> {
    fn text(&self, text: &str) -> String {
        self.characters.settable(text)
    }

    /// A text in which long words can be broken.
    fn breakable(&self, text: &str) -> String {
        let mut broken = String::new();
        let mut run = 0;
        for character in self.text(text).chars() {
            run = if character.is_whitespace() { 0 } else { run + 1 };
            if run > LONGEST_WORD {
                broken.push('\n');
                run = 1;
            }
            broken.push(character);
        }
        broken
    }

    fn section(&mut self, section: &Section) -> Value {
        let mut blocks = vec![];
        for group in section.groups() {
            if group.iter().all(Element::is_figure) {
                blocks.push(self.figures(group));
            } else {
                blocks.extend(group.iter().map(|block| self.block(block)));
                // A paragraph stays with the figures that follow it.
                if let Some(Value::Object(last)) = blocks.last_mut() {
                    last.insert("leads".into(), json!(true));
                }
            }
        }
        json!({ "title": self.text(&section.title), "blocks": blocks })
    }

    fn block(&mut self, block: &Element) -> Value {
        match block {
            Element::Heading(text) => json!({ "kind": "heading", "text": self.text(text) }),
            Element::Paragraph(words) => {
                json!({ "kind": "paragraph", "words": self.words(words), "leads": false })
            }
            Element::List(items) => {
                let items: Vec<Value> = items.iter().map(|item| self.words(item)).collect();
                json!({ "kind": "list", "items": items })
            }
            Element::Folded { title, items } => {
                let items: Vec<Value> = items.iter().map(|item| self.words(item)).collect();
                json!({ "kind": "list", "title": title, "items": items })
            }
            Element::Answer(answer) => {
                let facts = answer.facts.iter().map(|fact| {
                    json!({
                        "name": fact.name, "value": fact.cell.shown(), "unit": fact.unit, "note": self.text(&fact.note),
                    })
                });
                json!({
                    "kind": "answer",
                    "headline": answer.headline,
                    "run": self.text(&answer.run),
                    "policy": answer.policy,
                    "facts": facts.collect::<Vec<_>>(),
                })
            }
            Element::Table(table) => json!({ "kind": "table", "table": self.table(table) }),
            Element::Figure(_) => self.figures(std::slice::from_ref(block)),
            Element::Texts(texts) => self.texts(texts),
            Element::Code(code) => json!({ "kind": "code", "text": self.text(code) }),
        }
    }

    fn words(&self, words: &[Inline]) -> Value {
        let word = |word: &Inline| match word {
            Inline::Plain(text) => json!({ "kind": "plain", "text": self.text(text) }),
            Inline::Foreign(text) => json!({ "kind": "plain", "text": self.breakable(text) }),
            Inline::Strong(text) => json!({ "kind": "strong", "text": self.text(text) }),
            Inline::Link { text, url } => json!({ "kind": "link", "text": self.text(text), "url": url }),
        };
        words.iter().map(word).collect()
    }

    fn table(&self, table: &Table) -> Value {
        let column = |(index, column): (usize, &Column)| {
            json!({
                "name": self.text(&column.name), "unit": self.text(&column.unit), "numeric": table.is_numeric(index),
            })
        };
        let row = |row: &Vec<crate::document::Cell>| -> Vec<String> {
            row.iter().map(|cell| self.breakable(&cell.shown())).collect()
        };
        let caption = match table.rows.len() {
            0..=MOST_ROWS => self.text(&table.caption),
            rows => {
                let caption = self.text(&table.caption);
                format!(
                    "{caption}: the first {MOST_ROWS} of {rows} rows, which the other formats hold in full"
                )
            }
        };
        json!({
            "caption": caption,
            "columns": table.columns.iter().enumerate().map(column).collect::<Vec<_>>(),
            "rows": table.rows.iter().take(MOST_ROWS).map(row).collect::<Vec<_>>(),
        })
    }

    /// Rows of one wide figure or two narrow ones.
    fn figures(&mut self, blocks: &[Element]) -> Value {
        let mut rows: Vec<Vec<Value>> = vec![];
        let mut room = false;
        for block in blocks {
            let Element::Figure(figure) = block else { continue };
            let value = self.figure(figure);
            match rows.last_mut().filter(|_| room && !figure.wide) {
                Some(row) => {
                    row.push(value);
                    room = false;
                }
                None => {
                    rows.push(vec![value]);
                    room = !figure.wide;
                }
            }
        }
        json!({ "kind": "figures", "rows": rows })
    }

    fn figure(&mut self, figure: &Figure) -> Value {
        let size = figure.size(NARROW, WIDE);
        let colours = Colours::Of(Theme::Light);
        let svg = figure.to_svg(&Canvas { size, colours, titled: false, id: &figure.id });
        // Figures use the text's font, which is the same on every machine.
        let svg = svg.replacen(FIGURE_FONTS, "font-family=\"Libertinus Serif\"", 1);
        let path = format!("{}.svg", figure.id);
        self.files.insert(path.clone(), self.characters.settable_xml(&svg).into_bytes());
        let table = self.table(&figure.table);
        self.appendix.push(table);
        json!({
            "path": path,
            "alt": self.text(&format!("{}. {}", figure.title(), figure.description())),
            "title": self.text(figure.title()),
            "description": self.text(figure.description()),
            "wide": figure.wide,
            "number": self.appendix.len(),
        })
    }

    fn texts(&self, texts: &Texts) -> Value {
        let side = |(name, tokens): &(String, Vec<String>)| {
            let text = texts.apart(tokens);
            let marked = match text.marked {
                Marked::Nothing => None,
                Marked::Token(token) => Some(self.breakable(token)),
                Marked::End => Some("(end)".to_owned()),
            };
            json!({
                "name": self.text(name),
                "before": self.breakable(&text.before),
                "marked": marked,
                "after": self.breakable(&text.after),
            })
        };
        json!({
            "kind": "texts",
            "prompt": self.breakable(&texts.prompt),
            "sides": texts.sides.iter().map(side).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Cell, column};

    #[test]
    fn a_long_table_is_cut_and_says_so() {
        let table = |rows: usize| Table {
            id: "all".into(),
            caption: "All".into(),
            columns: vec![column("prompt", "")],
            rows: (0..rows).map(|index| vec![Cell::count(index)]).collect(),
        };
        let characters = Characters::built_in();
        let layout = Layout { characters: &characters, files: BTreeMap::new(), appendix: vec![] };
        let whole = layout.table(&table(MOST_ROWS));
        assert_eq!(
            (&whole["caption"], whole["rows"].as_array().map(Vec::len)),
            (&json!("All"), Some(MOST_ROWS))
        );
        let cut = layout.table(&table(1000));
        let caption = json!("All: the first 200 of 1000 rows, which the other formats hold in full");
        assert_eq!((&cut["caption"], cut["rows"].as_array().map(Vec::len)), (&caption, Some(MOST_ROWS)));
    }
}

//! The report as one self-contained HTML file with embedded styles, script and images.

mod hover;

use crate::document::{
    Answer, Apart, Cell, Document, Drawing, Element, Figure, Inline, Marked, Section, Table, Texts,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use layerscope_figures::visible;
use layerscope_figures::{Canvas, Colours, Theme, style_sheet};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Size of a figure beside another, CSS pixels.
const NARROW: [f64; 2] = [400.0, 270.0];
/// Size of a full-width figure.
const WIDE: [f64; 2] = [940.0, 340.0];

/// The document as HTML.
pub(crate) fn html(document: &Document) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                // Loads nothing and runs only our own script, even if a prompt or model name contains HTML.
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "layerscope " (env!("CARGO_PKG_VERSION")) };
                title { (visible(&document.title)) }
                style { (PreEscaped(style())) }
            }
            body {
                a.skip href="#answer" { "Skip to the answer" }
                header {
                    h1 { (foreign(&document.title)) }
                    p.subtitle { (foreign(&document.subtitle)) }
                }
                nav aria-label="Contents" {
                    ol {
                        @for section in &document.sections {
                            li { a href={ "#" (section.id) } { (foreign(&section.title)) } }
                        }
                    }
                }
                main {
                    @for section in &document.sections { (self::section(section)) }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn policy() -> String {
    let hash = BASE64_STANDARD.encode(Sha256::digest(SCRIPT));
    format!(
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; form-action \
         'none'"
    )
}

/// Our styles and the figures' colours: dark if the reader prefers it, light otherwise and in print.
fn style() -> String {
    let (light, dark) = (style_sheet(":root", Theme::Light), style_sheet(":root", Theme::Dark));
    format!("{light}@media screen and (prefers-color-scheme:dark){{{dark}}}{STYLE}")
}

fn section(section: &Section) -> Markup {
    html! {
        section id=(section.id) aria-labelledby={ (section.id) "-heading" } {
            h2 id={ (section.id) "-heading" } { (foreign(&section.title)) }
            // Consecutive figures share a grid.
            @for blocks in section.groups() {
                @if blocks.iter().all(Element::is_figure) {
                    div.figures { @for block in blocks { (self::block(block)) } }
                } @else {
                    @for block in blocks { (self::block(block)) }
                }
            }
        }
    }
}

fn block(block: &Element) -> Markup {
    match block {
        Element::Heading(text) => html! { h3 { (foreign(text)) } },
        Element::Paragraph(words) => html! { p { (inline(words)) } },
        Element::List(items) => html! { ul { @for item in items { li { (inline(item)) } } } },
        Element::Folded { title, items } => html! {
            details.why { summary { (title) } ul { @for item in items { li { (inline(item)) } } } }
        },
        Element::Answer(answer) => self::answer(answer),
        Element::Table(table) => self::table(table),
        Element::Figure(figure) => self::figure(figure),
        Element::Texts(texts) => self::texts(texts),
        Element::Code(code) => html! {
            // Scrollable elements must be focusable by keyboard.
            pre tabindex="0" { code { (visible(code)) } }
        },
    }
}

fn inline(words: &[Inline]) -> Markup {
    html! {
        @for word in words {
            @match word {
                // Notes may contain category names.
                Inline::Plain(text) => (visible(text)),
                Inline::Strong(text) => strong { (visible(text)) },
                Inline::Foreign(text) => (foreign(text)),
                Inline::Link { text, url } => a href=(url) { (text) },
            }
        }
    }
}

/// Untrusted text of any writing direction, isolated from its surroundings.
fn foreign(text: &str) -> Markup {
    html! { bdi { (visible(text)) } }
}

fn answer(answer: &Answer) -> Markup {
    html! {
        div.answer {
            p.headline { (answer.headline) }
            p.of {
                (foreign(&answer.run))
                @if let Some(policy) = &answer.policy { " · policy " code { (policy) } }
            }
            dl.facts {
                @for fact in &answer.facts {
                    div {
                        dt { (fact.name) }
                        dd.figure { (cell(&fact.cell)) " " span.unit { (fact.unit) } }
                        dd.note { (visible(&fact.note)) }
                    }
                }
            }
        }
    }
}

fn cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Text(text) => html! { (visible(text)) },
        Cell::Foreign(text) => foreign(text),
        Cell::Count(count) => html! { data value=(count) { (count) } },
        // The page contains all digits; the displayed text is rounded.
        Cell::Figure { value, shown } if value.is_finite() => html! { data value=(value) { (shown) } },
        Cell::Figure { shown, .. } => html! { (shown) },
    }
}

fn table(table: &Table) -> Markup {
    let numbers = |index: usize| table.is_numeric(index);
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby={ (table.id) "-caption" } {
            table id=(table.id) {
                caption id={ (table.id) "-caption" } { (foreign(&table.caption)) }
                thead {
                    tr {
                        @for (index, column) in table.columns.iter().enumerate() {
                            th scope="col" class=[numbers(index).then_some("number")] {
                                (foreign(&column.name))
                                @if !column.unit.is_empty() { " " span.unit { (column.unit) } }
                            }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (index, value) in row.iter().enumerate() {
                                @if index == 0 {
                                    th scope="row" class=[numbers(index).then_some("number")] { (cell(value)) }
                                } @else {
                                    td class=[numbers(index).then_some("number")] { (cell(value)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn figure(figure: &Figure) -> Markup {
    let size = figure.size(NARROW, WIDE);
    let canvas = Canvas { size, colours: Colours::Properties, titled: false, id: &figure.id };
    html! {
        figure id=(figure.id) class=[figure.wide.then_some("wide")] {
            figcaption { strong { (foreign(figure.title())) } " " span { (visible(figure.description())) } }
            (drawing(figure, &canvas))
            (hover::data(figure, &canvas))
            details {
                summary { "Data" }
                (table(&figure.table))
            }
        }
    }
}

/// A wide map or pattern scrolls on small screens; a wide chart is drawn a second time for them.
fn drawing(figure: &Figure, canvas: &Canvas<'_>) -> Markup {
    let svg = figure.to_svg(canvas);
    match &figure.drawing {
        Drawing::Map(_) | Drawing::Patches(_) | Drawing::Pattern(_) if figure.wide => html! {
            div.drawing tabindex="0" role="region" aria-label=(visible(figure.title())) { (PreEscaped(svg)) }
        },
        Drawing::Chart(_) | Drawing::TradeOff(_) | Drawing::Scores(_) if figure.wide => {
            let id = format!("{}-small", figure.id);
            let small = figure.to_svg(&Canvas { size: figure.size(NARROW, NARROW), id: &id, ..*canvas });
            html! {
                div.drawing {
                    (PreEscaped(svg.replacen("<svg ", "<svg class=\"large\" ", 1)))
                    (PreEscaped(small.replacen("<svg ", "<svg class=\"small\" ", 1)))
                }
            }
        }
        _ => html! { div.drawing { (PreEscaped(svg)) } },
    }
}

fn texts(texts: &Texts) -> Markup {
    html! {
        details {
            summary { "The prompt" }
            div.text tabindex="0" role="region" aria-label={ "Prompt " (visible(&texts.prompt_id)) } dir="auto" {
                (visible(&texts.prompt))
            }
        }
        div.texts {
            @for (name, tokens) in &texts.sides {
                div {
                    h4 { (visible(name)) }
                    div.text dir="auto" { (marked(&texts.apart(tokens))) }
                }
            }
        }
    }
}

/// A text with its mark.
fn marked(text: &Apart<'_>) -> Markup {
    html! {
        (visible(&text.before))
        @match text.marked {
            Marked::Nothing => {},
            Marked::Token(token) => mark { (visible(token)) },
            Marked::End => mark.end { "(end)" },
        }
        (visible(&text.after))
    }
}

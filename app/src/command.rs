//! The commands of palette, shortcuts and menu, in one list that also generates the help sheet.

use crate::export::ExportFormat;
use crate::state::View;
use eframe::egui::{Context, Key, KeyboardShortcut, Modifiers};
use layerscope_report::ReportFormat;

/// A command of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Open a run folder or a model.
    Open,
    /// Read the run folder again.
    Reload,
    /// Compare the run with another.
    Compare,
    /// Connect anew to the other machine.
    Reconnect,
    /// Show a view.
    Show(View),
    /// Show the next prompt of the run.
    NextPrompt,
    /// Show the previous prompt of the run.
    PreviousPrompt,
    /// Move the cutoff one layer deeper.
    Deeper,
    /// Move the cutoff one layer up.
    Shallower,
    /// Move the cutoff to the recommended layer.
    Recommended,
    /// Show all columns of the map.
    WholePrompt,
    /// Show or omit position 0.
    LeaveOutBos,
    /// Show or hide categories.
    ByCategory,
    /// Show or hide the view's data as a table.
    Table,
    /// Clear the selection.
    ClearSelection,
    /// Undo the last change of the view.
    Undo,
    /// Redo what was undone.
    Redo,
    /// Measure from which layer on the selected tokens can be removed.
    RemoveSpan,
    /// Patch the chosen prompt into the current one's run.
    Patch,
    /// Generate, live.
    Generate,
    /// Stop the engine's work.
    Stop,
    /// Export the view, or its data.
    Export(ExportFormat),
    /// Light or dark.
    Theme,
    /// The command palette.
    Palette,
    /// The help sheet.
    Help,
    /// Close the window.
    Quit,
}

/// Command on a Mac, Ctrl elsewhere.
const COMMAND: Modifiers = Modifiers::COMMAND;
const COMMAND_SHIFT: Modifiers = Modifiers::COMMAND.plus(Modifiers::SHIFT);

impl Order {
    /// All, in the order of the palette and the help sheet.
    pub fn all() -> impl Iterator<Item = Self> {
        let first = [Self::Open, Self::Reload, Self::Compare, Self::Reconnect];
        let rest = [
            Self::NextPrompt,
            Self::PreviousPrompt,
            Self::Deeper,
            Self::Shallower,
            Self::Recommended,
            Self::WholePrompt,
            Self::LeaveOutBos,
            Self::ByCategory,
            Self::Table,
            Self::ClearSelection,
            Self::Undo,
            Self::Redo,
            Self::RemoveSpan,
            Self::Patch,
            Self::Generate,
            Self::Stop,
        ];
        let last = [Self::Theme, Self::Palette, Self::Help, Self::Quit];
        let views = View::ALL.map(Self::Show);
        // A page of a browser closes with its tab.
        let last = last.into_iter().filter(|order| *order != Self::Quit || !cfg!(target_arch = "wasm32"));
        first.into_iter().chain(views).chain(rest).chain(ExportFormat::all().map(Self::Export)).chain(last)
    }

    /// Its displayed name.
    pub fn name(self) -> String {
        match self {
            Self::Open => "Open a run folder or a model …".into(),
            Self::Reload => "Read the run again".into(),
            Self::Compare => "Compare with another run …".into(),
            Self::Reconnect => "Reconnect to the other machine".into(),
            Self::Show(view) => format!("Show {}", view.name()),
            Self::NextPrompt => "Next prompt".into(),
            Self::PreviousPrompt => "Previous prompt".into(),
            Self::Deeper => "Raise the cutoff by one layer".into(),
            Self::Shallower => "Lower the cutoff by one layer".into(),
            Self::Recommended => "Put the cutoff where it is recommended".into(),
            Self::WholePrompt => "Show the whole prompt".into(),
            Self::LeaveOutBos => "Leave out BoS, or not".into(),
            Self::ByCategory => "Show categories, or not".into(),
            Self::Table => "Show the figures as a table, or not".into(),
            Self::ClearSelection => "Select nothing".into(),
            Self::Undo => "Undo".into(),
            Self::Redo => "Redo".into(),
            Self::RemoveSpan => "Ask from which layer the selected tokens may vanish".into(),
            Self::Patch => "Patch the chosen pair of prompts".into(),
            Self::Generate => "Generate side by side".into(),
            Self::Stop => "Stop what the model does".into(),
            Self::Export(format) => format!("Export {} as {} …", format.contents(), format.name()),
            Self::Theme => "Light or dark".into(),
            Self::Palette => "All commands …".into(),
            Self::Help => "Keyboard shortcuts".into(),
            Self::Quit => "Close the window".into(),
        }
    }

    /// Its keys.
    pub fn shortcut(self) -> Option<KeyboardShortcut> {
        let (modifiers, key) = match self {
            Self::Open => (COMMAND, Key::O),
            Self::Reload => (COMMAND, Key::R),
            Self::Compare => (COMMAND_SHIFT, Key::O),
            Self::Reconnect => (COMMAND_SHIFT, Key::N),
            Self::Show(view) => {
                const KEYS: [Key; View::ALL.len()] = [
                    Key::Num1,
                    // The others keep the numbers that they had before there were this one and Patching.
                    Key::P,
                    Key::Num2,
                    Key::Num3,
                    Key::Num4,
                    Key::Num5,
                    Key::T,
                    Key::Num6,
                    Key::Num7,
                    Key::Num8,
                    Key::Num9,
                ];
                let index = View::ALL.iter().position(|known| *known == view)?;
                (COMMAND, KEYS[index])
            }
            Self::NextPrompt => (Modifiers::ALT, Key::ArrowDown),
            Self::PreviousPrompt => (Modifiers::ALT, Key::ArrowUp),
            Self::Deeper => (Modifiers::NONE, Key::CloseBracket),
            Self::Shallower => (Modifiers::NONE, Key::OpenBracket),
            Self::Recommended => (Modifiers::NONE, Key::R),
            Self::WholePrompt => (Modifiers::NONE, Key::Num0),
            Self::LeaveOutBos => (Modifiers::NONE, Key::B),
            Self::ByCategory => (Modifiers::NONE, Key::C),
            Self::Table => (Modifiers::NONE, Key::T),
            Self::ClearSelection => (Modifiers::NONE, Key::Escape),
            Self::Undo => (COMMAND, Key::Z),
            Self::Redo => (COMMAND_SHIFT, Key::Z),
            Self::RemoveSpan => (COMMAND, Key::L),
            Self::Patch => (COMMAND_SHIFT, Key::T),
            Self::Generate => (COMMAND, Key::Enter),
            Self::Stop => (COMMAND, Key::Period),
            Self::Export(ExportFormat::Png) => (COMMAND, Key::E),
            Self::Export(ExportFormat::Svg) => (COMMAND_SHIFT, Key::E),
            Self::Export(ExportFormat::Csv) => (COMMAND_SHIFT, Key::C),
            Self::Export(ExportFormat::Report(ReportFormat::Html)) => (COMMAND_SHIFT, Key::R),
            Self::Export(ExportFormat::Report(_)) => return None,
            Self::Theme => (COMMAND, Key::D),
            Self::Palette => (COMMAND, Key::K),
            Self::Help => (Modifiers::NONE, Key::F1),
            Self::Quit => (COMMAND, Key::Q),
        };
        Some(KeyboardShortcut::new(modifiers, key))
    }

    /// The commands whose keys were pressed; in a text field, only those with Ctrl or Alt.
    pub fn pressed(ctx: &Context) -> Vec<Self> {
        let typing = ctx.text_edit_focused();
        // Shortcuts with more modifiers come first, because they consume the key.
        let mut orders: Vec<(Self, KeyboardShortcut)> =
            Self::all().filter_map(|order| Some((order, order.shortcut()?))).collect();
        orders.sort_by_key(|(_, shortcut)| !shortcut.modifiers.shift);
        orders.retain(|(order, shortcut)| {
            let bare = shortcut.modifiers == Modifiers::NONE && *order != Self::Help;
            !(typing && bare) && ctx.input_mut(|input| input.consume_shortcut(shortcut))
        });
        orders.into_iter().map(|(order, _)| order).collect()
    }

    /// Whether its name contains every typed word, ignoring case.
    pub fn matches(self, typed: &str) -> bool {
        let name = self.name().to_lowercase();
        typed.to_lowercase().split_whitespace().all(|word| name.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_shortcut_is_given_once() {
        let shortcuts: Vec<_> = Order::all().filter_map(Order::shortcut).collect();
        let distinct: HashSet<_> = shortcuts.iter().map(|s| format!("{s:?}")).collect();
        assert_eq!(distinct.len(), shortcuts.len());
    }

    #[test]
    fn the_palette_finds_by_words_in_any_order() {
        let matching: Vec<Order> = Order::all().filter(|order| order.matches("png export")).collect();
        assert_eq!(matching, [Order::Export(ExportFormat::Png)]);
        let matching: Vec<Order> = Order::all().filter(|order| order.matches("report")).collect();
        assert_eq!(matching.len(), ReportFormat::compiled_in().count());
    }
}

//! What the viewer shows, as elements of the page: a screen reader, and a program that operates the page, see nothing in a canvas.
//!
//! egui says what is on screen as a tree of AccessKit. Each of its nodes becomes an element without a look, with a role and properties of
//! WAI-ARIA, in reading order and where the node is drawn; pointers reach the canvas beneath. A click on an element, as screen readers make
//! it, goes to its widget. None of it costs anything until the page's button asks for it, since no browser tells whether anybody listens.

use eframe::egui::accesskit::{
    Action, ActionRequest, Node, NodeId, Orientation, Role, Toggled, TreeId, TreeUpdate,
};
use eframe::egui::{Context, Event, FullOutput, Plugin, RawInput};
use send_wrapper::SendWrapper;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Document, Element, HtmlCanvasElement, HtmlElement};

/// Attribute with a node's id.
const NODE: &str = "data-node";

/// Has the page's button put elements beside the canvas.
///
/// # Errors
/// What the browser says where the page lacks the button or its place.
pub(super) fn offer(
    document: &Document,
    canvas: &HtmlCanvasElement,
    ctx: &Context,
) -> std::result::Result<(), JsValue> {
    let button = document.get_element_by_id("read").ok_or("the page has no button for screen readers")?;
    let place = document.get_element_by_id("elements").ok_or("the page has no place for elements")?;
    let asked = Asked::default();
    ctx.add_plugin(Reader(SendWrapper::new(Elements {
        document: document.clone(),
        place: place.clone(),
        shown: HashMap::new(),
        asked: Rc::clone(&asked),
    })));
    let (of_button, of_canvas, asking) = (button.clone(), canvas.clone(), ctx.clone());
    let ask = Closure::<dyn FnMut()>::new(move || {
        asking.enable_accesskit();
        asking.request_repaint();
        of_button.remove();
        let _ = of_canvas.focus();
    });
    button.add_event_listener_with_callback("click", ask.as_ref().unchecked_ref())?;
    let (of_canvas, clicking) = (canvas.clone(), ctx.clone());
    let click = Closure::<dyn FnMut(web_sys::Event)>::new(move |event: web_sys::Event| {
        let element = event.target().and_then(|target| target.dyn_into::<HtmlElement>().ok());
        let Some(request) = element.as_ref().and_then(request) else { return };
        asked.borrow_mut().push(request);
        clicking.request_repaint();
        // What is typed goes to the widget.
        let _ = of_canvas.focus();
    });
    place.add_event_listener_with_callback("click", click.as_ref().unchecked_ref())?;
    // As long as the page.
    ask.forget();
    click.forget();
    Ok(())
}

/// What a click on an element asks of its widget.
fn request(element: &HtmlElement) -> Option<ActionRequest> {
    let target_node = NodeId::from(element.get_attribute(NODE)?.parse::<u64>().ok()?);
    let action = if element.has_attribute("data-click") { Action::Click } else { Action::Focus };
    Some(ActionRequest { action, target_tree: TreeId::ROOT, target_node, data: None })
}

/// Actions that have not reached egui yet.
type Asked = Rc<RefCell<Vec<ActionRequest>>>;

struct Reader(SendWrapper<Elements>);

impl Plugin for Reader {
    fn debug_name(&self) -> &'static str {
        "elements for screen readers"
    }

    fn input_hook(&mut self, _: &Context, input: &mut RawInput) {
        input.events.extend(self.0.asked.borrow_mut().drain(..).map(Event::AccessKitActionRequest));
    }

    fn output_hook(&mut self, ctx: &Context, output: &mut FullOutput) {
        if let Some(update) = output.platform_output.accesskit_update.take() {
            // A page that lost its elements keeps its canvas.
            let _ = self.0.show(&update, f64::from(ctx.zoom_factor()));
        }
    }
}

struct Elements {
    document: Document,
    place: Element,
    shown: HashMap<NodeId, (Element, Properties)>,
    asked: Asked,
}

impl Elements {
    /// Makes the elements those of a tree; `zoom`: CSS pixels of a point.
    fn show(&mut self, update: &TreeUpdate, zoom: f64) -> std::result::Result<(), JsValue> {
        let nodes: HashMap<NodeId, &Node> = update.nodes.iter().map(|(id, node)| (*id, node)).collect();
        let Some(root) = &update.tree else { return Ok(()) };
        let mut order = vec![];
        read(&nodes, root.root, &mut |id, node| {
            let properties = Properties::of(id, node, &nodes, zoom);
            order.extend(properties.map(|properties| (id, properties)));
        });
        let mut before = std::mem::take(&mut self.shown);
        let mut next = self.place.first_element_child();
        for (id, properties) in order {
            let element = match before.remove(&id) {
                Some((element, shown)) => {
                    properties.change(&element, Some(&shown))?;
                    element
                }
                None => {
                    let element = self.document.create_element("div")?;
                    properties.change(&element, None)?;
                    element
                }
            };
            // Moved only where the order changes, so that a screen reader keeps its place.
            if next.as_ref() == Some(&element) {
                next = element.next_element_sibling();
            } else {
                self.place.insert_before(&element, next.as_deref())?;
            }
            self.shown.insert(id, (element, properties));
        }
        before.into_values().for_each(|(element, _)| element.remove());
        Ok(())
    }
}

/// Calls `f` with each node that is not hidden, in reading order.
fn read(nodes: &HashMap<NodeId, &Node>, id: NodeId, f: &mut impl FnMut(NodeId, &Node)) {
    let Some(node) = nodes.get(&id).filter(|node| !node.is_hidden()) else { return };
    f(id, node);
    node.children().iter().for_each(|child| read(nodes, *child, f));
}

/// An element's text and attributes.
#[derive(PartialEq, Eq)]
struct Properties {
    text: String,
    attributes: Vec<(&'static str, String)>,
}

impl Properties {
    /// Those of a node; `None` if it only groups others.
    fn of(id: NodeId, node: &Node, nodes: &HashMap<NodeId, &Node>, zoom: f64) -> Option<Self> {
        let role = node.role();
        let labels = node.labelled_by().iter().filter_map(|label| nodes.get(label)?.value());
        let label = node.label().map_or_else(|| labels.collect::<Vec<_>>().join(" "), str::to_owned);
        let value = node.value().unwrap_or_default();
        let is_text = matches!(role, Role::Label | Role::Paragraph);
        let is_named = !label.is_empty() || (is_text && !value.is_empty());
        let aria = match role {
            Role::Button | Role::DefaultButton => "button",
            Role::CheckBox => "checkbox",
            Role::RadioButton => "radio",
            Role::Switch => "switch",
            Role::Link => "link",
            Role::TextInput | Role::MultilineTextInput | Role::SearchInput => "textbox",
            Role::ComboBox => "combobox",
            Role::Slider => "slider",
            Role::SpinButton => "spinbutton",
            Role::ScrollBar => "scrollbar",
            Role::Splitter => "separator",
            Role::ProgressIndicator => "progressbar",
            Role::MenuItem => "menuitem",
            Role::Tab => "tab",
            Role::Canvas | Role::Image if is_named => "img",
            Role::Dialog | Role::AlertDialog => "dialog",
            Role::Heading => "heading",
            _ if is_text && is_named => "",
            _ if is_named && role != Role::Window => "group",
            _ => return None,
        };
        let mut attributes = vec![(NODE, id.0.to_string())];
        let mut say =
            |name: &'static str, value: Option<String>| attributes.extend(value.map(|value| (name, value)));
        say("role", (!aria.is_empty()).then(|| aria.to_owned()));
        say("aria-label", (!is_text && is_named).then(|| label.clone()));
        let toggled = node.toggled().map(|toggled| match toggled {
            Toggled::True => "true",
            Toggled::False => "false",
            Toggled::Mixed => "mixed",
        });
        let checks = matches!(aria, "checkbox" | "radio" | "switch");
        say(if checks { "aria-checked" } else { "aria-pressed" }, toggled.map(str::to_owned));
        say("aria-selected", node.is_selected().map(|selected| selected.to_string()));
        say("aria-expanded", node.is_expanded().map(|expanded| expanded.to_string()));
        say("aria-disabled", node.is_disabled().then(|| "true".to_owned()));
        say("aria-multiline", (role == Role::MultilineTextInput).then(|| "true".to_owned()));
        say("aria-placeholder", node.placeholder().map(str::to_owned));
        say("aria-description", node.description().map(str::to_owned));
        say("aria-valuenow", node.numeric_value().map(|value| value.to_string()));
        say("aria-valuemin", node.min_numeric_value().map(|value| value.to_string()));
        say("aria-valuemax", node.max_numeric_value().map(|value| value.to_string()));
        let orientation = node.orientation().map(|orientation| match orientation {
            Orientation::Horizontal => "horizontal",
            Orientation::Vertical => "vertical",
        });
        say("aria-orientation", orientation.map(str::to_owned));
        // Others take the keys that follow.
        let is_clicked = node.supports_action(Action::Click) && !matches!(aria, "textbox" | "slider");
        say("data-click", is_clicked.then(String::new));
        if let Some(bounds) = node.bounds() {
            let mut style = String::new();
            let (wide, tall) = (bounds.x1 - bounds.x0, bounds.y1 - bounds.y0);
            for (name, points) in [("left", bounds.x0), ("top", bounds.y0), ("width", wide), ("height", tall)]
            {
                let _ = write!(style, "{name}:{:.1}px;", points * zoom);
            }
            say("style", Some(style));
        }
        let text = if is_text && value.is_empty() { label } else { value.to_owned() };
        Some(Self { text, attributes })
    }

    /// Makes an element like this, given what it was.
    fn change(&self, element: &Element, was: Option<&Self>) -> std::result::Result<(), JsValue> {
        if was == Some(self) {
            return Ok(());
        }
        if was.is_none_or(|was| was.text != self.text) {
            element.set_text_content(Some(&self.text));
        }
        let before = was.map_or(&[][..], |was| &was.attributes);
        for (name, _) in before.iter().filter(|(name, _)| self.attributes.iter().all(|(now, _)| now != name))
        {
            element.remove_attribute(name)?;
        }
        for attribute in self.attributes.iter().filter(|attribute| !before.contains(attribute)) {
            element.set_attribute(attribute.0, &attribute.1)?;
        }
        Ok(())
    }
}

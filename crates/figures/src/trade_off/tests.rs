use super::labels::{Surroundings, overlap};
use super::*;
use crate::colour::Theme;
use crate::svg::{Canvas, Colours, Pen, Surface, TextAnchor};
use proptest::prelude::*;

/// The drawn elements as text.
#[derive(Default)]
struct Drawn {
    texts: Vec<([f64; 2], String)>,
    markers: Vec<(Vec<[f64; 2]>, Ink)>,
    lines: Vec<Vec<[f64; 2]>>,
    hovers: Vec<([f64; 4], String)>,
}

impl Surface for Drawn {
    fn polyline(&mut self, points: &[[f64; 2]], _: Pen) {
        self.lines.push(points.to_vec());
    }
    fn polygon(&mut self, points: &[[f64; 2]], ink: Ink) {
        self.markers.push((points.to_vec(), ink));
    }
    fn text(&mut self, at: [f64; 2], _: TextAnchor, _: Ink, text: &str) {
        self.texts.push((at, text.to_owned()));
    }
    fn rimmed(&mut self, at: [f64; 2], _: TextAnchor, _: Ink, text: &str) {
        self.texts.push((at, text.to_owned()));
    }
    fn title(&mut self, at: [f64; 2], text: &str) {
        self.texts.push((at, text.to_owned()));
    }
    fn upwards(&mut self, at: [f64; 2], _: Ink, text: &str) {
        self.texts.push((at, text.to_owned()));
    }
    fn hover(&mut self, area: [f64; 4], text: &str) {
        self.hovers.push((area, text.to_owned()));
    }
}

fn point(name: &str, kind: usize, loss: f64, costs: [f64; 2]) -> TradeOffPoint {
    TradeOffPoint { name: name.into(), kind, loss, costs: costs.to_vec(), details: format!("KL {loss}") }
}

fn figure(points: Vec<TradeOffPoint>) -> TradeOff {
    TradeOff {
        title: "Quality and cost".into(),
        description: "Policies.".into(),
        loss: "KL, nats".into(),
        costs: vec!["TTFT / full".into(), "KV / full".into()],
        kinds: ["full", "speed", "pop"].map(String::from).to_vec(),
        rows: vec![TradeOffRow { name: "512 prompt tokens".into(), points }],
    }
}

fn three() -> TradeOff {
    figure(vec![
        point("full", 0, 0.0, [1.0, 1.0]),
        point("speed:20", 1, 0.1, [0.7, 0.7]),
        point("pop:20", 2, 1.0, [0.8, 1.0]),
    ])
}

fn drawn(figure: &TradeOff, size: [f64; 2]) -> Drawn {
    let mut drawn = Drawn::default();
    figure.draw(size, true, &mut drawn);
    drawn
}

fn middle([left, top, width, height]: [f64; 4]) -> [f64; 2] {
    [left + width / 2.0, top + height / 2.0]
}

#[test]
fn points_stand_where_the_axes_say() {
    let drawn = drawn(&three(), [700.0, 330.0]);
    assert_eq!(drawn.hovers.len(), 6);
    let at: Vec<[f64; 2]> = drawn.hovers.iter().map(|(area, _)| middle(*area)).collect();
    // Cheaper points are further left; equal costs have the same x.
    assert!(at[1][0] < at[2][0] && at[2][0] < at[0][0], "{at:?}");
    assert!((at[3][0] - at[5][0]).abs() < 1e-9);
    // A loss of 0 is below the smallest other loss; both panels share the vertical axis.
    assert!(at[0][1] > at[1][1] && at[1][1] > at[2][1]);
    assert_eq!([at[0][1], at[1][1]], [at[3][1], at[4][1]]);
    // At the height of its tick.
    let tick = |text: &str| drawn.texts.iter().find(|(_, found)| found == text).expect("a tick").0[1] - 4.0;
    assert!((tick("0") - at[0][1]).abs() < 1e-9 && (tick("0.1") - at[1][1]).abs() < 1e-6);
    assert_eq!(drawn.hovers[1].1, "speed:20\nKL 0.1");
}

#[test]
fn what_is_almost_zero_is_not_said_to_be_zero() {
    let mut figure = three();
    figure.rows[0].points[1].loss = 1e-7;
    let texts = drawn(&figure, [700.0, 330.0]).texts;
    assert!(texts.iter().any(|(_, text)| text == "≤1e-5") && texts.iter().all(|(_, text)| text != "0"));
}

#[test]
fn pareto_optimal_points_are_joined() {
    let figure = three();
    // pop:20 loses more than speed:20 and costs more.
    assert_eq!(figure.rows[0].pareto(0), [1, 0]);
    assert_eq!(figure.rows[0].pareto(1), [1, 0]);
    let drawn = drawn(&figure, [700.0, 330.0]);
    let at = |index: usize| middle(drawn.hovers[index].0);
    assert!(drawn.lines.contains(&vec![at(1), at(0)]));
}

#[test]
fn kinds_have_shapes_and_colours_of_their_own() {
    let drawn = drawn(&three(), [700.0, 330.0]);
    // Three in the legend, and two panels of three.
    assert_eq!(drawn.markers.len(), 9);
    let of = |ink| drawn.markers.iter().filter(move |(_, found)| *found == ink);
    assert_eq!(of(Ink::Text).count(), 3);
    let corners = |ink| of(ink).map(|(corners, _)| corners.len()).collect::<Vec<_>>();
    assert_ne!(corners(Ink::Text), corners(Ink::Series(0)));
    assert_ne!(corners(Ink::Series(0)), corners(Ink::Series(1)));
}

#[test]
fn undefined_points_are_left_out() {
    let mut figure = three();
    figure.rows[0].points[1].costs = vec![f64::NAN, 0.5];
    figure.rows[0].points[2].loss = f64::INFINITY;
    assert_eq!(figure.rows[0].pareto(0), [0]);
    assert_eq!(drawn(&figure, [700.0, 330.0]).hovers.len(), 3);
}

#[test]
fn costs_beyond_all_reason_are_left_out() {
    for cost in [f64::MAX, -f64::MAX, 1e300, 3.5e38] {
        let mut figure = three();
        figure.rows[0].points[2].costs[0] = cost;
        let drawn = drawn(&figure, [700.0, 330.0]);
        assert_eq!(drawn.hovers.len(), 5);
        assert!(drawn.lines.iter().flatten().flatten().all(|place| place.is_finite()));
    }
}

#[test]
fn narrow_figures_stack_their_panels() {
    let figure = three();
    let heights = |width: f64| {
        let drawn = drawn(&figure, [width, figure.height(width, true)]);
        let names = drawn.texts.into_iter().filter(|(_, text)| figure.costs.contains(text));
        names.map(|(at, _)| at[1]).collect::<Vec<_>>()
    };
    let (wide, narrow) = (heights(700.0), heights(320.0));
    assert_eq!(wide[0], wide[1]);
    assert!(narrow[1] > narrow[0] + 100.0, "{narrow:?}");
}

#[test]
fn the_image_is_xml_with_names_units_and_a_description() {
    let mut figure = three();
    figure.rows[0].points[1].name = "<speed> & \"co\"".into();
    let canvas =
        Canvas { size: [700.0, 330.0], colours: Colours::Of(Theme::Light), titled: true, id: "trade-off" };
    let svg = figure.to_svg(&canvas);
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    for text in
        ["Quality and cost", "KL, nats", "TTFT / full", "512 prompt tokens", "<speed> & \"co\"", "pop"]
    {
        assert!(texts.contains(&text), "{text}");
    }
}

#[test]
fn a_dozen_policies_in_a_small_panel_are_all_named() {
    let points: Vec<[f64; 2]> =
        (0..12).map(|index| [60.0 + f64::from(index % 4) * 6.0, 60.0 + f64::from(index / 4) * 9.0]).collect();
    let widths = [72.0; 12];
    let frame = [0.0, 0.0, 230.0, 210.0];
    let placed = Surroundings { points: &points, widths: &widths, frame, lines: &[] }.place();
    assert!(placed.iter().all(Option::is_some), "{placed:?}");
}

proptest! {
    #[test]
    fn names_never_stand_on_each_other_and_stay_within(
        points in proptest::collection::vec((0.0..200.0_f64, 0.0..200.0_f64, 10.0..120.0_f64), 0..24),
    ) {
        let places: Vec<[f64; 2]> = points.iter().map(|(x, y, _)| [*x, *y]).collect();
        let widths: Vec<f64> = points.iter().map(|(_, _, width)| *width).collect();
        let frame = [0.0, 0.0, 200.0, 200.0];
        let placed = Surroundings { points: &places, widths: &widths, frame, lines: &places }.place();
        let areas: Vec<_> = placed.into_iter().flatten().collect();
        for (index, area) in areas.iter().enumerate() {
            prop_assert!(area[0] >= 0.0 && area[1] >= 0.0 && area[0] + area[2] <= 200.0 && area[1] + area[3] <= 200.0);
            prop_assert!(!areas[..index].iter().any(|other| overlap(area, other)));
        }
    }

    #[test]
    fn any_figures_are_drawn_within_the_image(
        points in proptest::collection::vec((any::<f64>(), any::<f64>(), -1.0..3.0_f64, 0usize..9), 0..12),
        width in 200.0..1_000.0_f64,
    ) {
        let points = points.into_iter().map(|(loss, cost, other, kind)| point("p", kind, loss.abs(), [cost, other]));
        let figure = figure(points.collect());
        let size = [width, figure.height(width, true)];
        let drawn = drawn(&figure, size);
        prop_assert!(drawn.markers.iter().flat_map(|(outline, _)| outline).flatten().all(|at| at.is_finite()));
        for line in drawn.lines.iter().flatten() {
            prop_assert!(line.iter().zip(size).all(|(at, most)| (-1.0..=most + 1.0).contains(at)), "{:?} {:?}", line, size);
        }
    }

    #[test]
    fn pareto_optimal_points_are_those_that_no_other_beats(
        points in proptest::collection::vec((0.0..3.0_f64, 0.0..2.0_f64), 1..12),
    ) {
        let points: Vec<TradeOffPoint> =
            points.into_iter().map(|(loss, cost)| point("p", 0, loss, [cost, 1.0])).collect();
        let row = TradeOffRow { name: String::new(), points };
        let optimal = row.pareto(0);
        for (index, one) in row.points.iter().enumerate() {
            let beaten = row.points.iter().any(|other| {
                other.loss <= one.loss && other.costs[0] <= one.costs[0] && other != one
            });
            prop_assert_eq!(optimal.contains(&index), !beaten);
        }
    }
}

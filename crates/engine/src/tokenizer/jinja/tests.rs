//! The interpreter against Jinja2, and on templates that try to take too much.

use super::*;
use serde_json::Value as Json;

/// Noon of 4 July 2024, UTC.
const NOW: u64 = 1_720_094_400;

fn value_of(json: &Json) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => Value::Float(number.as_f64().expect("a number")),
        },
        Json::String(text) => Value::text(text),
        Json::Array(items) => Value::list(items.iter().map(value_of).collect::<Result<_>>()?)?,
        Json::Object(entries) => {
            let entries = entries.iter().map(|(name, value)| Ok((Value::text(name), value_of(value)?)));
            let entries = entries.collect::<Result<Vec<_>>>()?;
            Value::Mapping(Rc::new(value::Mapping::new(entries, &Budget::new(0))?))
        }
    })
}

fn render_with(source: &str, context: &Json) -> Result<String> {
    let variables = || {
        let entries = context.as_object().expect("an object");
        entries.iter().map(|(name, value)| Ok((name.as_str().into(), value_of(value)?))).collect()
    };
    render(source, variables, context.to_string().len(), NOW)
}

fn reason(source: &str) -> String {
    match render_with(source, &serde_json::json!({"messages": [{"role": "user", "content": "Hi"}]})) {
        Err(Failure::Broken { reason, .. }) => reason,
        other => panic!("{source:.80}: {other:.80?}"),
    }
}

#[test]
fn templates_are_rendered_as_jinja2_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizer/templates.json");
    let golden: Json = serde_json::from_str(&std::fs::read_to_string(path).expect("read")).expect("JSON");
    let rendered = golden["rendered"].as_object().expect("templates");
    assert!(rendered.len() > 1000);
    let mut wrong = Vec::new();
    for (source, expected) in rendered {
        let made = render_with(source, &golden["context"]);
        if made.as_deref().ok() != expected.as_str() {
            wrong.push(format!("{source:?} gives {made:?} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn values_that_hold_themselves_are_refused() {
    for source in [
        "{% set ns=namespace(x=0) %}{% set ns.x=ns %}{{ ns }}",
        "{% set ns=namespace(x=0) %}{% set ns.x=[{'a': ns}] %}{{ ns.x }}",
        "{% set ns=namespace() %}{% set ns=namespace(x=ns) %}",
        "{% set a=namespace() %}{% set b=namespace() %}{% set a.b, b.a = b, a %}{{ a == b }}",
        "{% set ns=namespace() %}{{ [ns] }}",
        "{% for x in [1] %}{% set l = [loop] %}{% endfor %}",
        "{% for x in [1] %}{{ loop.changed(loop) }}{% endfor %}",
        "{% set f = 'x'.upper %}{{ [f] }}",
    ] {
        assert!(reason(source).contains("into a value"), "{source}: {}", reason(source));
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = |open: &str, inner: &str, close: &str, levels: usize| {
        format!("{{{{ {}{inner}{} }}}}", open.repeat(levels), close.repeat(levels))
    };
    let levels = 10_000;
    for source in [
        deep("(", "1", ")", levels),
        deep("[", "1", "]", levels),
        deep("{'a':", "1", "}", levels),
        deep("-", "1", "", 40_000),
        deep("not ", "1", "", levels),
        deep("a[", "1", "]", levels),
        deep("f(", "1", ")", levels),
        deep("1 if 1 else ", "1", "", levels),
        deep("a is eq [", "1", "]", levels),
        format!("{}{}", "{% if 1 %}".repeat(levels), "{% endif %}".repeat(levels)),
        format!("{}{}", "{% set x %}".repeat(levels), "{% endset %}".repeat(levels)),
        format!("{{% set {}a{} = 1 %}}", "(".repeat(levels), ")".repeat(levels)),
        format!("{{% set x = 1 %}}{}", "{% set x = [x] %}".repeat(2_000)),
        "{% set ns=namespace(x=1) %}{% for i in range(1000) %}{% set ns.x={'a': (ns.x,)} %}{% endfor %}"
            .into(),
    ] {
        assert!(reason(&source).contains("deeper than 100 levels"), "{source:.60}: {}", reason(&source));
    }
    for source in [
        "{% macro m(x) %}{{ m([x]|first) }}{% endmacro %}{{ m(1) }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
    ] {
        assert!(reason(source).contains("deeper than 1000 levels"), "{source}: {}", reason(source));
    }
}

#[test]
fn chains_are_no_nesting() {
    let context = serde_json::json!({"a": {}});
    let chain =
        |first: &str, link: &str| render_with(&format!("{{{{ {first}{} }}}}", link.repeat(20_000)), &context);
    assert_eq!(chain("1", " + 1").as_deref(), Ok("20001"));
    assert_eq!(chain("1", " - 1 * 1").as_deref(), Ok("-19999"));
    assert_eq!(chain("'x'", "|e").as_deref(), Ok("x"));
    assert_eq!(chain("0", " or 0").as_deref(), Ok("0"));
    assert_eq!(chain("''", " ~ 1").map(|text| text.len()), Ok(20_000));
    assert!(chain("a", ".b").is_err());
    assert!(chain("1", " < 1").is_ok());
    let branches = format!("{{% if 0 %}}{}{{% else %}}b{{% endif %}}", "{% elif 0 %}a".repeat(15_000));
    assert_eq!(render_with(&branches, &context).as_deref(), Ok("b"));
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(90), ")".repeat(90));
    assert_eq!(render_with(&nested, &context).as_deref(), Ok("1"));
}

#[test]
fn memory_is_counted_before_it_is_taken() {
    for source in [
        "{{ range(100000)|join('a'*1000000) }}",
        "{{ '%999999999s'|format('x') }}",
        "{{ '%-999999999d' % 1 }}",
        "{{ 'a\nb'|indent(3000000000) }}",
        "{{ 'a'|indent(3000000000, first=true) }}",
        "{{ 'a' * 9223372036854775807 }}",
        "{{ [1] * 9223372036854775807 }}",
        "{{ 'a'.ljust(9000000000) }}",
        "{{ 'a'.zfill(9000000000) }}",
        "{{ 'a'|center(9000000000) }}",
        "{{ [[1]]|tojson(indent=9000000000) }}",
        "{% set x = 'a' * 1000000 %}{{ x|replace('a', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x.replace('', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x.join(range(1000)|map('string')|list) }}",
        "{% set x = 'a' * 1000000 %}{{ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% set y = x + '' %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{{ [x] * 1000 }}",
        "{% set x = 'a' * 1000000 %}{{ x|list }}",
        "{% set x = 'a,' * 1000000 %}{{ x.split(',') }}",
        "{% set x = 'a' * 1000000 %}{{ ([x] * 8)|map('upper')|map('lower')|map('title')|map('e')|list|tojson }}",
        "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% set x = [i, j]|list %}{% endfor %}{% endfor %}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{{ m(m(m(m(m(m(m(m('a' * 1000000)))))))) }}",
    ] {
        let reason = reason(source);
        let is_counted = ["bytes of memory", "too long", "too large", "too many steps"];
        assert!(is_counted.iter().any(|part| reason.contains(part)), "{source}: {reason}");
    }
    assert_eq!(reason(&format!("{{{{ {} }}}}", "x".repeat(1000))), "a name has more than 256 bytes");
    let long = "x".repeat(LONGEST_SOURCE + 1);
    assert!(reason(&long).contains("262145 bytes of source"), "{}", reason(&long));
}

#[test]
fn steps_are_counted() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
        "{% for a in range(100000) %}{{ 'x' * 1000000 in 'y' }}{% endfor %}",
        "{% set x = 'a' * 10000000 %}{% for a in range(100000) %}{{ x|length }}{% endfor %}",
        "{{ range(100000)|unique|list }}",
        "{% set k = 'x' * 1000000 %}{% set ns = namespace() %}{% for a in range(100000) %}{{ ns[k] }}{% endfor %}",
        "{% set l = range(100000)|list %}{% for a in l %}{{ -1 in l }}{% endfor %}",
    ] {
        let reason = reason(source);
        let is_counted = reason.contains("too many steps") || reason.contains("bytes of memory");
        assert!(is_counted, "{source}: {reason}");
    }
}

#[test]
fn a_long_conversation_fits() {
    let role = |index: usize| if index.is_multiple_of(2) { "user" } else { "assistant" };
    let message = |index| serde_json::json!({"role": role(index), "content": "x".repeat(2_000)});
    let messages: Vec<Json> = (0..2_000).map(message).collect();
    let template = "{% set ns = namespace(last='') %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = \
                    m.content|trim %}{% endif %}{{ '<' ~ m.role ~ '>' + m['content'].strip() }}{% endfor %}";
    let made = render_with(template, &serde_json::json!({"messages": messages})).expect("rendered");
    assert_eq!(made.len(), 2_000 * 2_000 + 1_000 * "<user><assistant>".len());
}

#[test]
fn what_the_template_says_itself_is_told_apart() {
    let context = serde_json::json!({});
    let raised =
        render_with("{% macro m() %}{{ raise_exception('no ' ~ 1) }}{% endmacro %}\n{{ m() }}", &context);
    assert_eq!(raised, Err(Failure::Raised("no 1".into())));
    assert_eq!(render_with("{{ strftime_now('%d %b %Y') }}", &context).as_deref(), Ok("04 Jul 2024"));
    let broken = render_with("a\n{% if 1 %}\n{{ missing.x }}{% endif %}", &context);
    assert_eq!(broken, Err(Failure::Broken { reason: "missing is undefined".into(), line: Some(3) }));
}

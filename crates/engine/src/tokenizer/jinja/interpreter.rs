//! Runs a syntax tree.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use super::arguments::{Given, int, text};
use super::budget::{Budget, Text};
use super::checks::check;
use super::filters::{dict, filter};
use super::methods::{self, number};
use super::operators::{arithmetic, compare, item, slice};
use super::strftime::strftime;
use super::syntax::{Arguments, Expression, Node, Postfix, Statement, Target};
use super::value::{Function, List, Loop, Macro, Mapping, Namespace, Value, text_of};
use super::{DEEPEST_CALL, Failure, Result, broken, syntax};

/// The longest range, as in Jinja's sandbox.
const LONGEST_RANGE: i64 = 100_000;

/// Bytes of a variable in a table that is half full.
const VARIABLE: usize = 2 * size_of::<(Rc<str>, Value)>();

/// What runs after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// The variables of a scope.
#[derive(Debug, Default)]
struct Frame {
    variables: HashMap<Rc<str>, Value>,
    /// The scope around this one. A macro's is where it is defined, not where it is called.
    parent: Option<usize>,
}

/// The state of a template that runs.
pub(super) struct Interpreter<'b> {
    budget: &'b Budget,
    frames: Vec<Frame>,
    /// The innermost scope.
    current: usize,
    depth: usize,
    /// Seconds since 1970, for `strftime_now`.
    now: u64,
}

impl<'b> Interpreter<'b> {
    /// A template that starts with `variables`.
    pub(super) fn new(variables: Vec<(Rc<str>, Value)>, now: u64, budget: &'b Budget) -> Self {
        let global = Frame { variables: variables.into_iter().collect(), parent: None };
        Self { budget, frames: vec![global], current: 0, depth: 0, now }
    }

    /// What `template` writes.
    pub(super) fn run(mut self, template: &[Node]) -> Result<String> {
        let mut out = self.budget.text();
        self.body(template, &mut out)?;
        Ok(out.into_string())
    }

    /// Runs `work` one level deeper.
    fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.budget.steps(1)?;
        if self.depth == DEEPEST_CALL {
            return Err(broken(format!("it calls deeper than {DEEPEST_CALL} levels")));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    /// Runs `work` in a scope of its own within scope `parent`.
    fn scoped<T>(&mut self, parent: usize, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (outer, height) = (self.current, self.frames.len());
        // A macro may have outlived the scope of its definition.
        let parent = if parent < height { parent } else { 0 };
        self.budget.bytes(size_of::<Frame>())?;
        self.frames.push(Frame { variables: HashMap::new(), parent: Some(parent) });
        self.current = height;
        let done = work(self);
        let variables = self.frames[height].variables.len();
        self.budget.give_back(size_of::<Frame>() + variables * VARIABLE);
        self.frames.truncate(height);
        self.current = outer;
        done
    }

    fn look_up(&self, name: &Rc<str>) -> Value {
        let mut at = Some(self.current);
        while let Some(frame) = at.and_then(|at| self.frames.get(at)) {
            if let Some(value) = frame.variables.get(name) {
                return value.clone();
            }
            at = frame.parent;
        }
        match &**name {
            "range" => Value::Function(Function::Range),
            "dict" => Value::Function(Function::Dict),
            "namespace" => Value::Function(Function::Namespace),
            "raise_exception" => Value::Function(Function::RaiseException),
            "strftime_now" => Value::Function(Function::StrftimeNow),
            _ => Value::Undefined(Some(name.clone())),
        }
    }

    fn set(&mut self, name: &Rc<str>, value: Value) -> Result<()> {
        if self.frames[self.current].variables.insert(name.clone(), value).is_none() {
            self.budget.bytes(VARIABLE)?;
        }
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Attribute(name, attribute) => match self.look_up(name) {
                Value::Namespace(namespace) => set_attribute(&namespace, attribute, value, self.budget),
                other => {
                    let kind = other.defined()?.kind();
                    Err(broken(format!("it sets an attribute of {name}, which is {kind}")))
                }
            },
            Target::Each(targets) => {
                let items = value.items(self.budget)?.into_vec();
                if items.len() != targets.len() {
                    let (wanted, got) = (targets.len(), items.len());
                    return Err(broken(format!("{got} values are unpacked into {wanted} names")));
                }
                targets.iter().zip(items).try_for_each(|(target, item)| self.assign(target, item))
            }
        }
    }

    fn body(&mut self, body: &[Node], out: &mut Text<'b>) -> Result<Flow> {
        for node in body {
            let flow = self.nested(|this| this.statement(&node.statement, out));
            match flow.map_err(|failure| failure.at(node.line))? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &Statement, out: &mut Text<'b>) -> Result<Flow> {
        match statement {
            Statement::Text(text) => out.push(text)?,
            Statement::Output(expression) => self.evaluate(expression)?.write(out)?,
            Statement::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.evaluate(condition)?.is_true() {
                        return self.body(body, out);
                    }
                }
                return self.body(otherwise, out);
            }
            Statement::For { target, items, condition, body, otherwise } => {
                let items = self.evaluate(items)?.items(self.budget)?.into_vec();
                let items = self.kept(target, items, condition.as_ref())?;
                if items.is_empty() {
                    return self.body(otherwise, out);
                }
                self.repeat(target, items, body, out)?;
            }
            Statement::Set { target, value } => {
                let value = self.evaluate(value)?;
                self.assign(target, value)?;
            }
            Statement::SetBlock { target, filters, body } => {
                let (value, flow) = self.captured(body, filters)?;
                self.assign(target, value)?;
                return Ok(flow);
            }
            Statement::Filter { filters, body } => {
                let (value, flow) = self.captured(body, filters)?;
                value.write(out)?;
                return Ok(flow);
            }
            Statement::With { assignments, body } => {
                let mut values = Vec::new();
                for (target, value) in assignments {
                    values.push((target, self.evaluate(value)?));
                }
                return self.scoped(self.current, |this| {
                    values.into_iter().try_for_each(|(target, value)| this.assign(target, value))?;
                    this.body(body, out)
                });
            }
            Statement::Macro(definition) => {
                let value = self.macro_value(definition)?;
                self.set(&definition.name, value)?;
            }
            Statement::Call { callee, arguments, caller } => {
                let callee = self.evaluate(callee)?;
                let mut given = self.arguments(arguments)?;
                given.named.push(("caller".into(), self.macro_value(caller)?));
                self.call(&callee, given)?.write(out)?;
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// The items for which a loop's condition holds.
    fn kept(
        &mut self,
        target: &Target,
        items: Vec<Value>,
        condition: Option<&Expression>,
    ) -> Result<Vec<Value>> {
        let Some(condition) = condition else {
            return Ok(items);
        };
        let mut kept = self.budget.items();
        for item in items {
            let holds = self.scoped(self.current, |this| {
                this.assign(target, item.clone())?;
                Ok(this.evaluate(condition)?.is_true())
            })?;
            if holds {
                kept.push(item)?;
            }
        }
        Ok(kept.into_vec())
    }

    fn repeat(
        &mut self,
        target: &Target,
        items: Vec<Value>,
        body: &[Node],
        out: &mut Text<'b>,
    ) -> Result<()> {
        let items = Rc::new(items);
        let state = Rc::new(Loop { items: items.clone(), at: Cell::new(0), last: None.into() });
        for (at, item) in items.iter().enumerate() {
            state.at.set(at);
            let flow = self.scoped(self.current, |this| {
                this.set(&"loop".into(), Value::Loop(state.clone()))?;
                this.assign(target, item.clone())?;
                this.body(body, out)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// What `body` writes, through `filters`.
    fn captured(&mut self, body: &[Node], filters: &[Postfix]) -> Result<(Value, Flow)> {
        let mut out = self.budget.text();
        let flow = self.scoped(self.current, |this| this.body(body, &mut out))?;
        let text = out.finish()?;
        Ok((self.postfixes(text, filters)?, flow))
    }

    fn macro_value(&mut self, definition: &Rc<syntax::Macro>) -> Result<Value> {
        self.budget.bytes(size_of::<Macro>())?;
        Ok(Value::Macro(Rc::new(Macro { definition: definition.clone(), frame: self.current })))
    }

    fn evaluate(&mut self, expression: &Expression) -> Result<Value> {
        self.nested(|this| this.value_of(expression))
    }

    fn value_of(&mut self, expression: &Expression) -> Result<Value> {
        match expression {
            Expression::Constant(value) => Ok(value.clone()),
            Expression::Name(name) => Ok(self.look_up(name)),
            Expression::List(items) => {
                let items = self.each(items)?;
                Ok(Value::List(Rc::new(List::new(items, false)?)))
            }
            Expression::Tuple(items) => {
                let items = self.each(items)?;
                Ok(Value::List(Rc::new(List::new(items, true)?)))
            }
            Expression::Mapping(entries) => {
                let mut all = Vec::new();
                for (key, value) in entries {
                    let key = self.evaluate(key)?;
                    self.budget.bytes(size_of::<(Value, Value)>())?;
                    all.push((key, self.evaluate(value)?));
                }
                Ok(Value::Mapping(Rc::new(Mapping::new(all, self.budget)?)))
            }
            Expression::Not(value) => Ok(Value::Bool(!self.evaluate(value)?.is_true())),
            Expression::Negative(value) => {
                let value = self.evaluate(value)?;
                arithmetic(syntax::Operator::Subtract, &Value::Int(0), &value, self.budget)
            }
            Expression::Positive(value) => {
                let value = self.evaluate(value)?;
                arithmetic(syntax::Operator::Add, &Value::Int(0), &value, self.budget)
            }
            Expression::Or(operands) => self.first(operands, true),
            Expression::And(operands) => self.first(operands, false),
            Expression::Compare(first, rest) => {
                let mut left = self.evaluate(first)?;
                for (comparison, right) in rest {
                    let right = self.evaluate(right)?;
                    if !compare(*comparison, &left, &right, self.budget)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expression::Arithmetic(first, rest) => {
                let mut value = self.evaluate(first)?;
                for (operator, operand) in rest {
                    let operand = self.evaluate(operand)?;
                    value = arithmetic(*operator, &value, &operand, self.budget)?;
                }
                Ok(value)
            }
            Expression::Join(operands) => {
                let mut out = self.budget.text();
                for operand in operands {
                    self.evaluate(operand)?.write(&mut out)?;
                }
                out.finish()
            }
            Expression::Postfix(value, chain) => {
                let value = self.evaluate(value)?;
                self.postfixes(value, chain)
            }
            Expression::If(both, otherwise) => {
                let [value, condition] = &**both;
                match (self.evaluate(condition)?.is_true(), otherwise) {
                    (true, _) => self.evaluate(value),
                    (false, Some(otherwise)) => self.evaluate(otherwise),
                    (false, None) => Ok(Value::Undefined(None)),
                }
            }
        }
    }

    fn each(&mut self, expressions: &[Expression]) -> Result<Vec<Value>> {
        let mut items = self.budget.items();
        for expression in expressions {
            items.push(self.evaluate(expression)?)?;
        }
        Ok(items.into_vec())
    }

    /// The first operand that is as true as `wanted`, or the last.
    fn first(&mut self, operands: &[Expression], wanted: bool) -> Result<Value> {
        let mut value = Value::Undefined(None);
        for operand in operands {
            value = self.evaluate(operand)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn postfixes(&mut self, mut value: Value, chain: &[Postfix]) -> Result<Value> {
        for postfix in chain {
            self.budget.steps(1)?;
            value = match postfix {
                Postfix::Attribute(name) => attribute(&value, name, self.budget)?,
                Postfix::Item(key) => {
                    let key = self.evaluate(key)?;
                    match (item(&value, &key, self.budget)?, &key) {
                        (Some(found), _) => found,
                        (None, Value::Str(name)) => attribute(&value, name, self.budget)?,
                        (None, _) => Value::Undefined(None),
                    }
                }
                Postfix::Slice(bounds) => {
                    let mut numbers = [const { None }; 3];
                    for (number, bound) in numbers.iter_mut().zip(bounds) {
                        *number = bound.as_ref().map(|bound| self.evaluate(bound)).transpose()?;
                    }
                    slice(&value, numbers, self.budget)?
                }
                Postfix::Call(arguments) => {
                    let given = self.arguments(arguments)?;
                    self.call(&value, given)?
                }
                Postfix::Filter(name, arguments) => {
                    let given = self.arguments(arguments)?;
                    filter(&value, name, given, self.budget)?
                }
                Postfix::Test { name, arguments, negated } => {
                    let given = self.arguments(arguments)?;
                    Value::Bool(check(&value, name, given, self.budget)? != *negated)
                }
            };
        }
        Ok(value)
    }

    fn arguments(&mut self, arguments: &Arguments) -> Result<Given> {
        let mut positional = self.each(&arguments.positional)?;
        let mut named = Vec::new();
        for (name, value) in &arguments.named {
            self.budget.bytes(size_of::<(Rc<str>, Value)>())?;
            named.push((name.clone(), self.evaluate(value)?));
        }
        if let Some(rest) = &arguments.rest {
            positional.extend(self.evaluate(rest)?.items(self.budget)?.into_vec());
        }
        if let Some(rest) = &arguments.named_rest {
            let Value::Mapping(rest) = self.evaluate(rest)? else {
                return Err(broken("** is before what is no mapping"));
            };
            for (name, value) in &rest.entries {
                self.budget.bytes(size_of::<(Rc<str>, Value)>())?;
                named.push((text(name, "**")?, value.clone()));
            }
        }
        Ok(Given { positional, named })
    }

    fn call(&mut self, callee: &Value, given: Given) -> Result<Value> {
        match callee.defined()? {
            Value::Macro(callee) => self.call_macro(callee, given),
            Value::Method(method) => methods::call(&method.0, method.1, given, self.budget),
            Value::Function(function) => self.call_function(*function, given),
            other => Err(broken(format!("it calls {}", other.kind()))),
        }
    }

    fn call_macro(&mut self, callee: &Macro, given: Given) -> Result<Value> {
        let definition = &callee.definition;
        let name = &definition.name;
        if given.positional.len() > definition.parameters.len() {
            return Err(broken(format!("{name} takes at most {} arguments", definition.parameters.len())));
        }
        let mut out = self.budget.text();
        self.scoped(callee.frame, |this| {
            let by_position = given.positional.len();
            for ((parameter, _), value) in definition.parameters.iter().zip(given.positional) {
                this.set(parameter, value)?;
            }
            for (parameter, value) in given.named {
                this.budget.steps(definition.parameters.len())?;
                let at = definition.parameters.iter().position(|(other, _)| *other == parameter);
                match at {
                    None if &*parameter != "caller" => {
                        return Err(broken(format!("{name} does not take {parameter}")));
                    }
                    Some(at) if at < by_position => {
                        return Err(broken(format!("{name} has two values for {parameter}")));
                    }
                    _ => this.set(&parameter, value)?,
                }
            }
            for (parameter, default) in &definition.parameters[by_position..] {
                if this.frames[this.current].variables.contains_key(parameter) {
                    continue;
                }
                let value = match default {
                    Some(default) => this.evaluate(default)?,
                    None => Value::Undefined(Some(parameter.clone())),
                };
                this.set(parameter, value)?;
            }
            this.body(&definition.body, &mut out)
        })?;
        out.finish()
    }

    fn call_function(&mut self, function: Function, given: Given) -> Result<Value> {
        match function {
            Function::Range => self.range(given),
            Function::Dict => dict(given, self.budget),
            Function::Namespace => {
                self.budget.bytes(size_of::<Namespace>())?;
                let namespace = Namespace::default();
                let Value::Mapping(attributes) = dict(given, self.budget)? else {
                    return Err(broken("namespace takes names and values"));
                };
                for (name, value) in &attributes.entries {
                    set_attribute(&namespace, &text(name, "namespace")?, value.clone(), self.budget)?;
                }
                Ok(Value::Namespace(Rc::new(namespace)))
            }
            Function::RaiseException => {
                let message = given.single("raise_exception", "message")?;
                Err(Failure::Raised(text_of(&message, self.budget)?.to_string()))
            }
            Function::StrftimeNow => {
                let format = text(&given.single("strftime_now", "format")?, "strftime_now")?;
                self.budget.reads(format.len())?;
                self.budget.string(&strftime(&format, self.now).map_err(broken)?)
            }
        }
    }

    fn range(&mut self, given: Given) -> Result<Value> {
        let mut bounds = given.positional.iter().map(|value| int(Some(value.clone()), 0, "range"));
        let (from, to, step) = match (bounds.next(), bounds.next(), bounds.next(), bounds.next()) {
            (Some(to), None, ..) => (0, to?, 1),
            (Some(from), Some(to), step, None) => (from?, to?, step.unwrap_or(Ok(1))?),
            _ => return Err(broken("range takes one to three integers")),
        };
        if step == 0 || !given.named.is_empty() {
            return Err(broken("range takes one to three integers, of which the step is not 0"));
        }
        let mut items = self.budget.items();
        let mut at = from;
        let mut length = 0;
        while if step > 0 { at < to } else { at > to } {
            length += 1;
            if length > LONGEST_RANGE {
                return Err(broken(format!("a range has more than {LONGEST_RANGE} numbers")));
            }
            items.push(Value::Int(at))?;
            let Some(next) = at.checked_add(step) else { break };
            at = next;
        }
        items.list()
    }
}

/// Sets an attribute, which must not hold what can change: a namespace that holds itself would have no end.
fn set_attribute(namespace: &Namespace, name: &Rc<str>, value: Value, budget: &Budget) -> Result<()> {
    value.levels()?;
    budget.bytes(VARIABLE)?;
    namespace.attributes.borrow_mut().insert(name.clone(), value);
    Ok(())
}

/// `value.name`: a method, or else an attribute or an item.
pub(super) fn attribute(value: &Value, name: &Rc<str>, budget: &Budget) -> Result<Value> {
    let undefined = || Value::Undefined(Some(name.clone()));
    match value.defined()? {
        Value::Namespace(namespace) => {
            budget.reads(name.len())?;
            Ok(namespace.attributes.borrow().get(name).cloned().unwrap_or_else(undefined))
        }
        Value::Loop(own) => {
            Ok(loop_attribute(own, name).or_else(|| methods::method(value, name)).unwrap_or_else(undefined))
        }
        _ => match methods::method(value, name) {
            Some(method) => {
                budget.bytes(2 * size_of::<Value>())?;
                Ok(method)
            }
            None if matches!(value, Value::Mapping(_)) => {
                Ok(item(value, &Value::Str(name.clone()), budget)?.unwrap_or_else(undefined))
            }
            None => Ok(undefined()),
        },
    }
}

fn loop_attribute(own: &Loop, name: &str) -> Option<Value> {
    let (at, length) = (own.at.get(), own.items.len());
    Some(match name {
        "index" => number(at + 1),
        "index0" => number(at),
        "revindex" => number(length - at),
        "revindex0" => number(length - at - 1),
        "first" => Value::Bool(at == 0),
        "last" => Value::Bool(at + 1 == length),
        "length" => number(length),
        // Levels of a recursive loop.
        "depth" => Value::Int(1),
        "depth0" => Value::Int(0),
        "previtem" => neighbour(own, at.checked_sub(1)),
        "nextitem" => neighbour(own, at.checked_add(1)),
        _ => return None,
    })
}

fn neighbour(own: &Loop, at: Option<usize>) -> Value {
    at.and_then(|at| own.items.get(at)).cloned().unwrap_or(Value::Undefined(None))
}

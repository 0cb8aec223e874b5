//! The syntax tree of a template. Chains are lists, so that its depth is the nesting of the source.

use std::rc::Rc;

use super::value::Value;

/// A statement and its line, from 1.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) statement: Statement,
}

#[derive(Debug)]
pub(super) enum Statement {
    Text(String),
    Output(Expression),
    If {
        /// Conditions with what runs where they are the first to hold.
        branches: Vec<(Expression, Vec<Node>)>,
        otherwise: Vec<Node>,
    },
    For {
        target: Target,
        items: Expression,
        condition: Option<Expression>,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Set {
        target: Target,
        value: Expression,
    },
    SetBlock {
        target: Target,
        filters: Vec<Postfix>,
        body: Vec<Node>,
    },
    With {
        assignments: Vec<(Target, Expression)>,
        body: Vec<Node>,
    },
    Filter {
        filters: Vec<Postfix>,
        body: Vec<Node>,
    },
    Macro(Rc<Macro>),
    /// A call whose callee may call back the block's body.
    Call {
        callee: Expression,
        arguments: Arguments,
        caller: Rc<Macro>,
    },
    Break,
    Continue,
}

/// What is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(Rc<str>),
    /// An attribute of a namespace.
    Attribute(Rc<str>, Rc<str>),
    Each(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Rc<str>,
    /// Names, with what they are where the call does not say.
    pub(super) parameters: Vec<(Rc<str>, Option<Expression>)>,
    pub(super) body: Vec<Node>,
}

#[derive(Debug)]
pub(super) enum Expression {
    Constant(Value),
    Name(Rc<str>),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Mapping(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    /// The first that is true, or the last.
    Or(Vec<Expression>),
    /// The first that is false, or the last.
    And(Vec<Expression>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    /// From left to right.
    Arithmetic(Box<Expression>, Vec<(Operator, Expression)>),
    /// The operands of `~`.
    Join(Vec<Expression>),
    /// What follows a value, from left to right.
    Postfix(Box<Expression>, Vec<Postfix>),
    /// `value if condition else otherwise`
    If(Box<[Expression; 2]>, Option<Box<Expression>>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Debug)]
pub(super) enum Postfix {
    Attribute(Rc<str>),
    Item(Expression),
    /// From, to, step.
    Slice([Option<Expression>; 3]),
    Call(Arguments),
    Filter(Rc<str>, Arguments),
    Test {
        name: Rc<str>,
        arguments: Arguments,
        negated: bool,
    },
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expression>,
    pub(super) named: Vec<(Rc<str>, Expression)>,
    /// What follows `*`: a list of more arguments.
    pub(super) rest: Option<Expression>,
    /// What follows `**`: a mapping of more arguments.
    pub(super) named_rest: Option<Expression>,
}

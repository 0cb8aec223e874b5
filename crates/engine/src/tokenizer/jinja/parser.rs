//! Tokens to a syntax tree, with the precedence of Jinja2.

use std::rc::Rc;

use super::lexer::{Token, tokens};
use super::syntax::{Arguments, Comparison, Expression, Macro, Node, Operator, Postfix, Statement, Target};
use super::value::Value;
use super::{DEEPEST, Failure, LONGEST_SOURCE, Result, broken};

/// The statements of template `source`.
pub(super) fn parse(source: &str) -> Result<Vec<Node>> {
    if source.len() > LONGEST_SOURCE {
        let bytes = source.len();
        return Err(broken(format!("it has {bytes} bytes of source, and {LONGEST_SOURCE} are supported")));
    }
    let mut parser = Parser { tokens: tokens(source)?, at: 0, depth: 0, loops: 0 };
    let template = parser.body(&[]).map(|(body, _)| body);
    template.map_err(|failure| failure.at(parser.line()))
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    /// Token that is next.
    at: usize,
    depth: usize,
    /// Loops around the next token, within the innermost macro.
    loops: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        // The last token, `End`, is never passed.
        &self.tokens[self.at].0
    }

    fn line(&self) -> usize {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn skip(&mut self, token: &Token) -> bool {
        let found = self.peek() == token;
        if found {
            self.next();
        }
        found
    }

    fn skip_sign(&mut self, sign: &'static str) -> bool {
        self.skip(&Token::Sign(sign))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(name) if name == word)
    }

    fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn unexpected(&self, wanted: &str) -> Failure {
        broken(format!("it has {} where {wanted} is wanted", self.peek()))
    }

    fn expect(&mut self, token: &Token) -> Result<()> {
        if self.skip(token) { Ok(()) } else { Err(self.unexpected(&token.to_string())) }
    }

    fn expect_sign(&mut self, sign: &'static str) -> Result<()> {
        self.expect(&Token::Sign(sign))
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.skip_word(word) { Ok(()) } else { Err(self.unexpected(word)) }
    }

    fn name(&mut self) -> Result<Rc<str>> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.next();
                Ok(name.into())
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEEPEST {
            return Err(broken(format!("its source nests deeper than {DEEPEST} levels")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a tag that starts with one of `ends`, or to the end of the template where there are none.
    /// Returns the word that ended them; what follows it in its tag is next.
    fn body(&mut self, ends: &[&'static str]) -> Result<(Vec<Node>, &'static str)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let statement = match self.next() {
                Token::Text(text) => Statement::Text(text),
                Token::OutputStart => {
                    let output = self.tuple(true)?;
                    self.expect(&Token::OutputEnd)?;
                    Statement::Output(output)
                }
                Token::TagStart => {
                    if let Some(end) = ends.iter().find(|end| self.is_word(end)) {
                        self.next();
                        return Ok((body, end));
                    }
                    self.nested(Self::statement).map_err(|failure| failure.at(line))?
                }
                Token::End if ends.is_empty() => return Ok((body, "")),
                Token::End => return Err(broken(format!("{} is missing", ends.join(" or ")))),
                _ => return Err(self.unexpected("a statement")),
            };
            body.push(Node { line, statement });
        }
    }

    /// Statements up to the tag `end`, which is read too.
    fn block(&mut self, end: &'static str) -> Result<Vec<Node>> {
        self.expect(&Token::TagEnd)?;
        let (body, _) = self.body(&[end])?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<Statement> {
        let word = self.name()?;
        let statement = match &*word {
            "if" => self.conditional()?,
            "for" => self.repetition()?,
            "set" => self.assignment()?,
            "with" => {
                let mut assignments = Vec::new();
                while *self.peek() != Token::TagEnd {
                    if !assignments.is_empty() {
                        self.expect_sign(",")?;
                    }
                    let target = self.target(false)?;
                    self.expect_sign("=")?;
                    assignments.push((target, self.expression()?));
                }
                Statement::With { assignments, body: self.block("endwith")? }
            }
            "filter" => {
                let mut filters = vec![self.filter()?];
                self.filters(&mut filters)?;
                Statement::Filter { filters, body: self.block("endfilter")? }
            }
            "macro" => {
                let name = self.name()?;
                let parameters = self.parameters()?;
                Statement::Macro(self.macro_body(name, parameters, "endmacro")?)
            }
            "call" => {
                let parameters = match self.peek() {
                    Token::Sign("(") => self.parameters()?,
                    _ => Vec::new(),
                };
                let Expression::Postfix(callee, mut chain) = self.expression()? else {
                    return Err(broken("{% call %} is not followed by a call"));
                };
                let Some(Postfix::Call(arguments)) = chain.pop() else {
                    return Err(broken("{% call %} is not followed by a call"));
                };
                let callee = if chain.is_empty() { *callee } else { Expression::Postfix(callee, chain) };
                let caller = self.macro_body("caller".into(), parameters, "endcall")?;
                Statement::Call { callee, arguments, caller }
            }
            "break" | "continue" if self.loops == 0 => {
                return Err(broken(format!("{{% {word} %}} is outside of a loop")));
            }
            "break" => Statement::Break,
            "continue" => Statement::Continue,
            _ => return Err(broken(format!("its {{% {word} %}} tag is not supported"))),
        };
        self.expect(&Token::TagEnd)?;
        Ok(statement)
    }

    fn conditional(&mut self) -> Result<Statement> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(true)?;
            self.expect(&Token::TagEnd)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match end {
                "elif" => {}
                "else" => return Ok(Statement::If { branches, otherwise: self.block("endif")? }),
                _ => return Ok(Statement::If { branches, otherwise: Vec::new() }),
            }
        }
    }

    fn repetition(&mut self) -> Result<Statement> {
        let target = self.target(false)?;
        self.expect_word("in")?;
        let items = self.tuple(false)?;
        let condition = if self.skip_word("if") { Some(self.expression()?) } else { None };
        if self.is_word("recursive") {
            return Err(broken("its recursive loop is not supported"));
        }
        self.expect(&Token::TagEnd)?;
        self.loops += 1;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if end == "else" { self.block("endfor")? } else { Vec::new() };
        Ok(Statement::For { target, items, condition, body, otherwise })
    }

    fn assignment(&mut self) -> Result<Statement> {
        let target = self.target(true)?;
        if self.skip_sign("=") {
            return Ok(Statement::Set { target, value: self.tuple(true)? });
        }
        let mut filters = Vec::new();
        self.filters(&mut filters)?;
        Ok(Statement::SetBlock { target, filters, body: self.block("endset")? })
    }

    fn parameters(&mut self) -> Result<Vec<(Rc<str>, Option<Expression>)>> {
        self.expect_sign("(")?;
        let mut parameters = Vec::new();
        while !self.skip_sign(")") {
            if !parameters.is_empty() {
                self.expect_sign(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_sign("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn macro_body(
        &mut self,
        name: Rc<str>,
        parameters: Vec<(Rc<str>, Option<Expression>)>,
        end: &'static str,
    ) -> Result<Rc<Macro>> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.block(end)?;
        self.loops = loops;
        Ok(Rc::new(Macro { name, parameters, body }))
    }

    /// One or more targets; attributes of namespaces only where `attributes` is set.
    fn target(&mut self, attributes: bool) -> Result<Target> {
        let first = self.single_target(attributes)?;
        if *self.peek() != Token::Sign(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_sign(",") {
            if self.is_word("in") || *self.peek() == Token::Sign("=") {
                break;
            }
            targets.push(self.single_target(attributes)?);
        }
        Ok(Target::Each(targets))
    }

    fn single_target(&mut self, attributes: bool) -> Result<Target> {
        if self.skip_sign("(") {
            let target = self.nested(|parser| parser.target(attributes))?;
            self.expect_sign(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if matches!(&*name, "true" | "True" | "false" | "False" | "none" | "None") {
            return Err(broken(format!("it assigns to {name}")));
        }
        match attributes && self.skip_sign(".") {
            true => Ok(Target::Attribute(name, self.name()?)),
            false => Ok(Target::Name(name)),
        }
    }

    /// One expression, or a tuple of several with commas between; the first may be conditional where `conditional` is set.
    fn tuple(&mut self, conditional: bool) -> Result<Expression> {
        let single = |parser: &mut Self| match conditional {
            true => parser.expression(),
            false => parser.nested(Self::or),
        };
        let first = single(self)?;
        if *self.peek() != Token::Sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_sign(",") {
            let ends = matches!(self.peek(), Token::TagEnd | Token::OutputEnd | Token::Sign(")" | "]"));
            if ends {
                break;
            }
            items.push(single(self)?);
        }
        Ok(Expression::Tuple(items))
    }

    fn expression(&mut self) -> Result<Expression> {
        self.nested(|parser| {
            let value = parser.or()?;
            if !parser.skip_word("if") {
                return Ok(value);
            }
            let condition = parser.or()?;
            let otherwise = match parser.skip_word("else") {
                true => Some(Box::new(parser.expression()?)),
                false => None,
            };
            Ok(Expression::If(Box::new([value, condition]), otherwise))
        })
    }

    fn or(&mut self) -> Result<Expression> {
        let first = self.and()?;
        let mut operands = vec![first];
        while self.skip_word("or") {
            operands.push(self.and()?);
        }
        Ok(single_or(operands, Expression::Or))
    }

    fn and(&mut self) -> Result<Expression> {
        let first = self.not()?;
        let mut operands = vec![first];
        while self.skip_word("and") {
            operands.push(self.not()?);
        }
        Ok(single_or(operands, Expression::And))
    }

    fn not(&mut self) -> Result<Expression> {
        match self.skip_word("not") {
            true => Ok(Expression::Not(Box::new(self.nested(Self::not)?))),
            false => self.compare(),
        }
    }

    fn compare(&mut self) -> Result<Expression> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Sign("==") => Comparison::Equal,
                Token::Sign("!=") => Comparison::Unequal,
                Token::Sign("<") => Comparison::Less,
                Token::Sign("<=") => Comparison::LessOrEqual,
                Token::Sign(">") => Comparison::Greater,
                Token::Sign(">=") => Comparison::GreaterOrEqual,
                Token::Name(name) if name == "in" => Comparison::In,
                Token::Name(name) if name == "not" => Comparison::NotIn,
                _ => break,
            };
            self.next();
            if comparison == Comparison::NotIn {
                self.expect_word("in")?;
            }
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Compare(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expression> {
        self.arithmetic(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::join)
    }

    fn join(&mut self) -> Result<Expression> {
        let first = self.product()?;
        let mut operands = vec![first];
        while self.skip_sign("~") {
            operands.push(self.product()?);
        }
        Ok(single_or(operands, Expression::Join))
    }

    fn product(&mut self) -> Result<Expression> {
        const OPERATORS: [(&str, Operator); 4] = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.arithmetic(&OPERATORS, |parser| {
            parser.arithmetic(&[("**", Operator::Power)], |parser| parser.unary(true))
        })
    }

    fn arithmetic(
        &mut self,
        operators: &[(&'static str, Operator)],
        operand: impl Fn(&mut Self) -> Result<Expression>,
    ) -> Result<Expression> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(&(_, operator)) = operators.iter().find(|(sign, _)| *self.peek() == Token::Sign(sign))
        {
            self.next();
            rest.push((operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Arithmetic(Box::new(first), rest) })
    }

    /// As in Jinja2, a sign before a value takes what is in the value, and filters take the value with its sign.
    fn unary(&mut self, with_filters: bool) -> Result<Expression> {
        let value = if self.skip_sign("-") {
            Expression::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.skip_sign("+") {
            Expression::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut chain = Vec::new();
        self.postfixes(&mut chain)?;
        if with_filters {
            self.filters_and_tests(&mut chain)?;
        }
        Ok(if chain.is_empty() { value } else { Expression::Postfix(Box::new(value), chain) })
    }

    fn primary(&mut self) -> Result<Expression> {
        let found = self.next();
        Ok(match found {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Expression::Constant(Value::Bool(true)),
                "false" | "False" => Expression::Constant(Value::Bool(false)),
                "none" | "None" => Expression::Constant(Value::None),
                _ => Expression::Name(name.into()),
            },
            Token::Str(mut text) => {
                while let Token::Str(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                Expression::Constant(Value::Str(text.into()))
            }
            Token::Int(number) => Expression::Constant(Value::Int(number)),
            Token::Float(number) => Expression::Constant(Value::Float(number)),
            Token::Sign("(") if self.skip_sign(")") => Expression::Tuple(Vec::new()),
            Token::Sign("(") => {
                let inside = self.tuple(true)?;
                self.expect_sign(")")?;
                inside
            }
            Token::Sign("[") => {
                let mut items = Vec::new();
                while !self.skip_sign("]") {
                    if !items.is_empty() {
                        self.expect_sign(",")?;
                        if self.skip_sign("]") {
                            break;
                        }
                    }
                    items.push(self.expression()?);
                }
                Expression::List(items)
            }
            Token::Sign("{") => {
                let mut entries = Vec::new();
                while !self.skip_sign("}") {
                    if !entries.is_empty() {
                        self.expect_sign(",")?;
                        if self.skip_sign("}") {
                            break;
                        }
                    }
                    let key = self.expression()?;
                    self.expect_sign(":")?;
                    entries.push((key, self.expression()?));
                }
                Expression::Mapping(entries)
            }
            other => return Err(broken(format!("it has {other} where a value is wanted"))),
        })
    }

    /// Reads attributes, items and calls.
    fn postfixes(&mut self, chain: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_sign(".") {
                chain.push(match self.peek() {
                    Token::Int(index) => {
                        let index = Value::Int(*index);
                        self.next();
                        Postfix::Item(Expression::Constant(index))
                    }
                    _ => Postfix::Attribute(self.name()?),
                });
            } else if self.skip_sign("[") {
                chain.push(self.subscript()?);
                self.expect_sign("]")?;
            } else if *self.peek() == Token::Sign("(") {
                chain.push(Postfix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Result<Postfix> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        loop {
            match self.peek() {
                Token::Sign(":") if colons == 2 => return Err(self.unexpected("]")),
                Token::Sign(":") => {
                    self.next();
                    colons += 1;
                }
                Token::Sign("]") => break,
                _ if parts[colons].is_some() => return Err(self.unexpected("]")),
                _ if colons == 0 => parts[0] = Some(self.tuple(true)?),
                _ => parts[colons] = Some(self.expression()?),
            }
        }
        match (colons, parts) {
            (0, [Some(index), ..]) => Ok(Postfix::Item(index)),
            (0, _) => Err(self.unexpected("an index")),
            (_, parts) => Ok(Postfix::Slice(parts)),
        }
    }

    fn arguments(&mut self) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        self.expect_sign("(")?;
        let mut is_first = true;
        while !self.skip_sign(")") {
            if !is_first {
                self.expect_sign(",")?;
                if self.skip_sign(")") {
                    break;
                }
            }
            is_first = false;
            let is_named = matches!(self.tokens.get(self.at + 1), Some((Token::Sign("="), _)));
            match self.peek() {
                Token::Sign("*") if arguments.rest.is_none() => {
                    self.next();
                    arguments.rest = Some(self.expression()?);
                }
                Token::Sign("**") if arguments.named_rest.is_none() => {
                    self.next();
                    arguments.named_rest = Some(self.expression()?);
                }
                Token::Name(_) if is_named => {
                    let name = self.name()?;
                    self.expect_sign("=")?;
                    arguments.named.push((name, self.expression()?));
                }
                _ if !arguments.named.is_empty() || arguments.rest.is_some() => {
                    return Err(broken("an argument without a name follows others"));
                }
                _ => arguments.positional.push(self.expression()?),
            }
        }
        Ok(arguments)
    }

    /// A filter's name, which may have dots, and its arguments.
    fn filter(&mut self) -> Result<Postfix> {
        let name = self.name()?;
        let arguments = match self.peek() {
            Token::Sign("(") => self.arguments()?,
            _ => Arguments::default(),
        };
        Ok(Postfix::Filter(name, arguments))
    }

    fn filters(&mut self, chain: &mut Vec<Postfix>) -> Result<()> {
        while self.skip_sign("|") {
            chain.push(self.filter()?);
        }
        Ok(())
    }

    fn filters_and_tests(&mut self, chain: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_sign("|") {
                chain.push(self.filter()?);
            } else if self.skip_word("is") {
                chain.push(self.test()?);
            } else if *self.peek() == Token::Sign("(") {
                chain.push(Postfix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn test(&mut self) -> Result<Postfix> {
        let negated = self.skip_word("not");
        let name = self.name()?;
        let arguments = match self.peek() {
            Token::Sign("(") => self.arguments()?,
            Token::Name(word) if matches!(word.as_str(), "else" | "or" | "and" | "if") => {
                Arguments::default()
            }
            Token::Name(word) if word == "is" => return Err(broken("it chains tests with is")),
            Token::Name(_) | Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{") => {
                let value = self.nested(Self::primary)?;
                let mut inner = Vec::new();
                self.postfixes(&mut inner)?;
                let value = match inner.is_empty() {
                    true => value,
                    false => Expression::Postfix(Box::new(value), inner),
                };
                Arguments { positional: vec![value], ..Arguments::default() }
            }
            _ => Arguments::default(),
        };
        Ok(Postfix::Test { name, arguments, negated })
    }
}

/// The only operand, or `chain` of several.
fn single_or(mut operands: Vec<Expression>, chain: fn(Vec<Expression>) -> Expression) -> Expression {
    match operands.pop() {
        Some(only) if operands.is_empty() => only,
        Some(last) => {
            operands.push(last);
            chain(operands)
        }
        None => chain(operands),
    }
}

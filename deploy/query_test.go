package deploy_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// anyValue stands for a label's value that is not known before the fact.
const anyValue = "\x00"

// variables are what Grafana puts into queries, as something that parses.
var variables = strings.NewReplacer("$__rate_interval", "5m", `="$job"`, `=~".*"`, "$instance", ".*")

// judge parses a query and holds it against what is exported: every selector
// finds a series, every label that is grouped or joined by is there, and rate
// is taken of counters and of nothing else. It returns the labels of the
// result.
func (e exported) judge(query string) (result map[string]bool, err error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(query))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	defer func() { // what is thrown below
		if wrong, ok := recover().(queryError); ok {
			err = fmt.Errorf("%s: %s", query, wrong)
		}
	}()
	e.checkRates(expr)
	return e.labelsOf(expr), nil
}

type queryError string

func wrong(format string, args ...any) { panic(queryError(fmt.Sprintf(format, args...))) }

// checkRates walks to every selector and looks at the function around it.
func (e exported) checkRates(expr parser.Expr) {
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		rated := false
		for _, above := range path {
			if c, ok := above.(*parser.Call); ok {
				rated = rated || slices.Contains([]string{"rate", "irate", "increase"}, c.Func.Name)
			}
		}
		if kind, known := e.kind[s.Name]; known && rated != (kind == dto.MetricType_COUNTER) {
			wrong("%s is a %s, and rated is %v", s.Name, strings.ToLower(kind.String()), rated)
		}
		return nil
	})
}

// labelsOf returns the labels that the result of an expression may have.
func (e exported) labelsOf(expr parser.Expr) map[string]bool {
	switch x := expr.(type) {
	case *parser.VectorSelector:
		return e.selected(x)
	case *parser.MatrixSelector:
		return e.labelsOf(x.VectorSelector)
	case *parser.ParenExpr:
		return e.labelsOf(x.Expr)
	case *parser.UnaryExpr:
		return e.labelsOf(x.Expr)
	case *parser.SubqueryExpr:
		return e.labelsOf(x.Expr)
	case *parser.AggregateExpr:
		inner, kept := e.labelsOf(x.Expr), map[string]bool{}
		if x.Without {
			kept = maps.Clone(inner)
		}
		for _, name := range x.Grouping {
			if !inner[name] {
				wrong("there is no label %s in %s", name, x.Expr)
			}
			kept[name] = !x.Without
		}
		if x.Op == parser.TOPK || x.Op == parser.BOTTOMK {
			return inner
		}
		return kept
	case *parser.BinaryExpr:
		return e.joined(x)
	case *parser.Call:
		return e.called(x)
	}
	return map[string]bool{} // numbers and strings
}

func (e exported) selected(s *parser.VectorSelector) map[string]bool {
	all := map[string]bool{}
	if len(e.series[s.Name]) == 0 {
		wrong("%s is not exported", s.Name)
	}
series:
	for _, l := range e.series[s.Name] {
		for _, m := range s.LabelMatchers {
			if value := l.Get(m.Name); m.Name != model.MetricNameLabel && value != anyValue && !m.Matches(value) {
				continue series
			}
		}
		l.Range(func(l labels.Label) { all[l.Name] = true })
	}
	if len(all) == 0 {
		wrong("no series is %s", s)
	}
	for _, m := range s.LabelMatchers {
		if m.Name != model.MetricNameLabel && !all[m.Name] {
			wrong("%s has no label %s", s.Name, m.Name)
		}
		if m.Type == labels.MatchRegexp || m.Type == labels.MatchNotRegexp {
			e.checkAlternatives(s.Name, m)
		}
	}
	return all
}

// checkAlternatives finds a series for each of the words of a=~"b|c".
func (e exported) checkAlternatives(name string, m *labels.Matcher) {
	if !regexp.MustCompile(`^\w+(\|\w+)*$`).MatchString(m.Value) {
		return
	}
	for _, word := range strings.Split(m.Value, "|") {
		if !slices.ContainsFunc(e.series[name], func(l labels.Labels) bool { v := l.Get(m.Name); return v == word || v == anyValue }) {
			wrong("no series of %s has %s=%q", name, m.Name, word)
		}
	}
}

func (e exported) joined(x *parser.BinaryExpr) map[string]bool {
	left, right := e.labelsOf(x.LHS), e.labelsOf(x.RHS)
	switch {
	case x.VectorMatching == nil: // one side is a number
		maps.Copy(left, right)
		return left
	case x.Op == parser.LOR:
		maps.Copy(left, right)
		return left
	case x.VectorMatching.On:
		for _, name := range x.VectorMatching.MatchingLabels {
			if !left[name] || !right[name] {
				wrong("%s is not on both sides of %s", name, x.Op)
			}
		}
	default:
		for _, name := range x.VectorMatching.MatchingLabels {
			if !left[name] && !right[name] {
				wrong("%s, which is ignored, is on no side of %s", name, x.Op)
			}
			delete(left, name)
			delete(right, name)
		}
		if !maps.Equal(left, right) {
			wrong("the sides of %s have different labels: %v and %v", x.Op, sorted(left), sorted(right))
		}
	}
	if x.VectorMatching.Card == parser.CardOneToOne && x.VectorMatching.On {
		kept := map[string]bool{}
		for _, name := range x.VectorMatching.MatchingLabels {
			kept[name] = true
		}
		return kept
	}
	if x.VectorMatching.Card == parser.CardOneToMany {
		left = right
	}
	for _, name := range x.VectorMatching.Include {
		left[name] = true
	}
	return left
}

func (e exported) called(x *parser.Call) map[string]bool {
	all := map[string]bool{}
	for _, arg := range x.Args {
		maps.Copy(all, e.labelsOf(arg))
	}
	switch x.Func.Name {
	case "histogram_quantile":
		if !all["le"] && !e.isNative(x.Args[1]) {
			wrong("there is no le in %s", x.Args[1])
		}
		delete(all, "le")
	case "label_replace":
		all[x.Args[1].(*parser.StringLiteral).Val] = true
	case "absent":
		return map[string]bool{}
	}
	return all
}

// isNative says whether an expression is made of native histograms.
func (e exported) isNative(expr parser.Expr) bool {
	native := true
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			native = native && e.native[s.Name]
		}
		return nil
	})
	return native
}

func sorted(set map[string]bool) (names []string) {
	for name, in := range set {
		if in {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

package main

import (
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// plotted is a plot of the report.
type plotted interface {
	title() string
	draw(file string) error
}

// bars is a plot of cases side by side, a colour for each side.
type bars struct {
	name  string
	sides []string
	cases []string
	value map[[2]string]float64 // side, case
}

func (b *bars) title() string { return b.name }

func (b *bars) add(side, what string, value float64) {
	if !slices.Contains(b.sides, side) {
		b.sides = append(b.sides, side)
	}
	if !slices.Contains(b.cases, what) {
		b.cases = append(b.cases, what)
	}
	if b.value == nil {
		b.value = map[[2]string]float64{}
	}
	b.value[[2]string{side, what}] = value
}

// plotFile is the name of a plot's file: the title in small letters.
func plotFile(title string) string {
	return "report-" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.ReplaceAll(strings.ToLower(title), "µ", "u")) + ".svg"
}

// colours that stay apart for the colour-blind; ours comes first.
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{153, 153, 153, 255}, color.RGBA{230, 159, 0, 255},
	color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255}, color.RGBA{213, 94, 0, 255},
}

func (b *bars) draw(file string) error {
	p := plot.New()
	p.Title.Text = b.name
	p.Y.Min = 0
	p.Legend.Top = true
	width := vg.Points(14)
	for i, side := range b.sides {
		values := make(plotter.Values, len(b.cases))
		for j, what := range b.cases {
			values[j] = b.value[[2]string{side, what}]
		}
		bar, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		bar.Color = colours[i%len(colours)]
		bar.LineStyle.Width = 0
		bar.Offset = width * vg.Length(2*i-len(b.sides)+1) / 2
		p.Add(bar)
		p.Legend.Add(side, bar)
	}
	p.NominalX(b.cases...)
	p.X.Min, p.X.Max = -0.6, float64(len(b.cases))-0.4
	p.Y.Max *= 1.1 + 0.1*float64(len(b.sides)) // room for the legend
	return p.Save(vg.Length(len(b.cases))*110+vg.Points(80), vg.Points(260), file)
}

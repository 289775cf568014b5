package main

import (
	"image/color"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// bars is a plot of cases side by side, a colour for each side.
type bars struct {
	group, title string
	sides, cases []string
	values       map[string]plotter.Values // by side, of each case
}

// bar adds what a case cost on each side to the plot of that title.
func (r *report) bar(title, what string, sides ...*side) {
	if r.plot == nil {
		r.plot = &bars{group: r.group, title: title, values: map[string]plotter.Values{}}
		for _, s := range sides {
			r.plot.sides = append(r.plot.sides, s.name)
		}
	}
	r.plot.cases = append(r.plot.cases, what)
	for _, s := range sides {
		r.plot.values[s.name] = append(r.plot.values[s.name], s.cost.perRequest())
	}
}

// file is the name of the plot's file: report- and the title in small letters.
func (b *bars) file() string {
	return "report-" + strings.NewReplacer(" ", "-", ",", "", "µ", "u").Replace(strings.ToLower(b.title)) + ".svg"
}

// colours that stay apart for the colour-blind; ours comes first.
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{153, 153, 153, 255}, color.RGBA{230, 159, 0, 255},
	color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255}, color.RGBA{213, 94, 0, 255},
}

func (b *bars) draw(file string) error {
	p := plot.New()
	p.Title.Text = b.title
	p.Y.Min = 0
	p.Legend.Top = true
	width := vg.Points(14)
	for i, side := range b.sides {
		bar, err := plotter.NewBarChart(b.values[side], width)
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

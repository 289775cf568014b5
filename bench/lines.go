package main

import (
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// lines is a plot of how a cost grows, a line for each side, over a logarithmic
// axis: what does not grow is level.
type lines struct {
	name, axis string
	sides      []string
	points     map[string]plotter.XYs // by side
}

func (l *lines) title() string { return l.name }

func (l *lines) add(side string, x int, y float64) {
	if l.points == nil {
		l.points = map[string]plotter.XYs{}
	}
	if !slices.Contains(l.sides, side) {
		l.sides = append(l.sides, side)
	}
	l.points[side] = append(l.points[side], plotter.XY{X: float64(x), Y: y})
}

func (l *lines) draw(file string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = l.name, l.axis
	p.Legend.Top, p.Legend.Left = true, true
	var ticks plot.ConstantTicks
	for i, side := range l.sides {
		line, dots, err := plotter.NewLinePoints(l.points[side])
		if err != nil {
			return err
		}
		line.Color, dots.Color = colours[i%len(colours)], colours[i%len(colours)]
		line.Width, dots.Shape = vg.Points(1.5), draw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(side, line, dots)
		if i > 0 {
			continue // the sides have their points at the same places
		}
		for _, at := range l.points[side] {
			ticks = append(ticks, plot.Tick{Value: at.X, Label: strconv.Itoa(int(at.X))})
		}
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Min = 0
	p.Y.Max *= 1.1 + 0.1*float64(len(l.sides)) // room for the legend
	return p.Save(vg.Points(520), vg.Points(280), file)
}

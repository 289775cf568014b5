package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"listedge/origin/admin"
	"listedge/origin/usage"
)

type usageCommand struct {
	DatabaseFlags
	jsonFlag
	Workspace uuid.UUID `help:"The workspace." required:""`
	Since     days      `help:"How far back, as 24h or 7d, at most 35d. The first hour counts as a whole." default:"24h" placeholder:"DURATION"`
}

// Validate refuses a period that is longer than usage is kept.
func (c *usageCommand) Validate() error { return checkPeriod("--since", &c.Since, days(usage.Kept)) }

// Run prints the usage.
func (c *usageCommand) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	u, err := a.Usage(ctx, c.Workspace, time.Duration(c.Since))
	return c.print(t, u, err, func() { printUsage(t, u) })
}

// Help explains the columns.
func (usageCommand) Help() string {
	return "Requests are all that were answered with a valid key, with any status. 429s, 304s and bypassed ones, which said Cache-Control: no-cache, " +
		"are among them. Bytes are those of response bodies as sent, compressed or not. Queries are page queries of Postgres: one that several requests share " +
		"counts for the key of the first, and looking up keys for nobody. What is used of a quota is estimated: all requests but 429s and 304s. The quota itself " +
		"counts neither 403s nor the 412s and 504s that memory answers, but 304s that cost a query.\n" +
		"\n" +
		"Nodes write every five seconds. Hours are kept for 35 days, the last use of a key for as long as the key."
}

func printUsage(t *terminal, u admin.Usage) {
	fmt.Fprintf(t.out, "%s  since %s\n\n", u.WorkspaceID, instant(&u.Since))
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "requests\t429s\t304s\tbypassed\tbytes\tqueries\tlast used\t  key")
	line := func(n usage.Counts, lastUsed *time.Time, key string) {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%s\t  %s\n", n.Requests, n.Refused, n.NotModified, n.Bypassed, n.Bytes, n.Queries, instant(lastUsed), key)
	}
	for _, k := range u.Keys {
		label := "(deleted)"
		if k.Prefix != "" {
			label = strings.TrimSpace(k.Prefix + "…  " + k.Name)
		}
		line(k.Counts, k.LastUsedAt, k.ID.String()+"  "+label)
	}
	line(u.Totals, nil, "total")
	_ = w.Flush()
	if u.Quota != nil {
		fmt.Fprintf(t.out, "\nquota: %s used\n", shownQuota(u.Quota, u.QuotaUsed))
	}
}

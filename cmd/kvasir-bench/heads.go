package main

import (
	"fmt"
	"strings"

	"kvasir/bench"
)

// layerHead says what is measured, of a layer with that name.
func layerHead(name string) func(*bench.Report) []string {
	return func(r *bench.Report) []string { return dispatchHead(name, r) }
}

// auditHead says what is measured.
func auditHead(r *bench.AuditReport) []string {
	s := &r.Settings
	return []string{
		fmt.Sprintf("%s; turns of %d rows in batches of %d, with one row in %d checked in groups of %d, and with none",
			s.Layer, s.Rows, s.Batch, s.Every, s.Group),
		machineLine(&r.Machine, ""),
	}
}

// swarmHead says what is simulated.
func swarmHead(r *bench.SwarmReport) []string {
	s := &r.Settings
	return []string{
		fmt.Sprintf("simulated: %d workers; %d layers of %d experts, top-%d, hidden %d, FFN %d; micro-batches of %d rows",
			s.Workers, s.Layers, s.Experts, s.TopK, s.Hidden, s.FFN, s.Batch),
		fmt.Sprintf("the middle worker: %s, %v GB, round trip %v ms, up %v, down %v bits/s; spread %v, churn %v an hour, seed %d",
			s.Worker, s.Memory, s.RTT, s.Up/1e5*1e5, s.Down/1e5*1e5, s.Spread, s.Churn, s.Seed),
		machineLine(&r.Machine, ""),
	}
}

// dispatchHead says what is measured.
func dispatchHead(name string, r *bench.Report) []string {
	s := &r.Settings
	if s.Weights > 0 {
		name = fmt.Sprintf("%s; %.2f GB of weights", name, float64(s.Weights)/1e9)
	}
	lines := []string{name, machineLine(&r.Machine, s.Kernel)}
	if s.Workers == 0 {
		return lines
	}
	swarm := fmt.Sprintf("%d worker behind gateway and hub, all on this machine", s.Workers)
	if s.Workers > 1 {
		swarm = strings.Replace(swarm, "worker", "workers", 1)
	}
	if s.Up > 0 {
		swarm += fmt.Sprintf("; %vbit/s from each worker", bench.Rate(s.Up))
	}
	if s.Down > 0 {
		swarm += fmt.Sprintf("; %vbit/s to each", bench.Rate(s.Down))
	}
	if s.Jitter > 0 {
		swarm += fmt.Sprintf("; jitter of %v ms", s.Jitter)
	}
	if s.Stall != "" {
		swarm += "; stalls of " + s.Stall
	}
	return append(lines, swarm)
}

// decodeName says what model is measured.
func decodeName(r *bench.Report) string {
	s := &r.Settings
	return fmt.Sprintf("%s: %d layers, %d of them with their experts on workers, hidden %d, %d experts, top-%d, FFN %d, %s", s.Model,
		s.Layers, s.Remote, s.Hidden, s.Experts, s.TopK, s.FFN, s.Quant)
}

// kernelsHead says what is measured.
func kernelsHead(name string, r *bench.KernelsReport) []string {
	return []string{
		name + "; random weights, computed here with " + threads(r.Settings.Threads),
		machineLine(&r.Machine, r.Settings.Kernel),
	}
}

// modelHead says what is measured.
func modelHead(r *bench.ModelReport) []string {
	s := &r.Settings
	return []string{
		fmt.Sprintf("%s: %s, %d layers, hidden %d, %d experts, top-%d, FFN %d, %s, vocabulary %d; %.2f GB", s.Model, s.Arch, s.Layers,
			s.Hidden, s.Experts, s.TopK, s.FFN, s.Quant, s.Vocab, float64(s.File)/1e9),
		fmt.Sprintf("computed here with %s; prompts of %d random tokens, and %d tokens of each are counted", threads(s.Threads), s.Prompt, s.Tokens),
		machineLine(&r.Machine, s.Kernel),
	}
}

// serveHead says what is measured.
func serveHead(r *bench.ServeReport) []string {
	s := &r.Settings
	return []string{fmt.Sprintf("%s; streams of %d tokens over loopback, %s", s.Model, s.Tokens, threads(s.Threads)), machineLine(&r.Machine, s.Kernel)}
}

func threads(n int) string {
	if n == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", n)
}

// machineLine describes the machine and the build; without kernels nothing is computed.
func machineLine(m *bench.Machine, kernel string) string {
	text := fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)
	if kernel != "" {
		text += fmt.Sprintf(", %s kernels", kernel)
	}
	text += ", " + m.Go
	if m.Commit == "" {
		text += ", no commit recorded"
	} else {
		text += ", commit " + m.Commit[:min(12, len(m.Commit))]
		if strings.HasSuffix(m.Commit, "+") {
			text += ", changed since"
		}
	}
	var best []string
	if m.Int8Peak > 0 {
		best = append(best, fmt.Sprintf("%.0f GOP/s", m.Int8Peak))
	}
	if m.Read > 0 {
		best = append(best, fmt.Sprintf("%.1f GB/s", m.Read))
	}
	if len(best) > 0 {
		text += "; at best " + strings.Join(best, ", ")
	}
	return text
}

"""What a run tells: progress, history, summary, comparison. Plain data in, text and files out."""

package chat

const thinkOpen = "<think>"
